import { Berth } from '@berth/sdk';
import { signal } from '@preact/signals';
import { isWithin, type KeyScope } from '../../../../shared/key-scopes.ts';

/** Sent with every request to control, which gives this page's requests the key of its session. */
export const PAGE_HEADERS = { 'x-berth-console': '1' };

/** The signed-in caller. */
export interface Session {
  readonly organization: string;
  readonly keyId: string;
  /** Scopes of its key. */
  readonly scopes: readonly KeyScope[];
  readonly region: string;
  readonly expiresAt: string;
}

/** `undefined` until the server has said whether there is one. */
export const session = signal<Session | null | undefined>(undefined);
/** Why the sign-in page is shown again, if not because somebody signed out. */
export const sessionEnded = signal(false);

/** Whether the key of the session may do what needs a scope. */
export const isAllowed = (scope: KeyScope): boolean => isWithin(scope, session.value?.scopes ?? []);

/** Every answer to this page passes here: a session that has ended leads back to the sign-in. */
export function noteStatus(status: number): void {
  if (status !== 401 || !session.value) return;
  sessionEnded.value = true;
  session.value = null;
}

/** Sends the page's own request, without a key: it has none. */
export async function pageFetch(request: Request): Promise<Response> {
  request.headers.delete('authorization');
  for (const [name, value] of Object.entries(PAGE_HEADERS)) request.headers.set(name, value);
  const response = await fetch(request);
  noteStatus(response.status);
  return response;
}

/**
 * The API, as the session's key. The client wants a key, which {@link pageFetch} leaves out again.
 */
export const berth = new Berth({
  baseUrl: location.origin,
  apiKey: 'of-the-session',
  fetch: (input, init) => pageFetch(new Request(input, init)),
});

interface SessionAnswer {
  readonly success: boolean;
  readonly data?: Session | null;
  readonly error?: string;
}

async function callSession(method: string, headers: object = {}): Promise<SessionAnswer> {
  const all = { ...PAGE_HEADERS, ...headers };
  const response = await fetch('/console/session', { method, headers: all });
  return (await response.json()) as SessionAnswer;
}

export async function openSession(): Promise<void> {
  session.value = (await callSession('GET')).data ?? null;
}

/** @returns what is wrong, if anything is */
export async function signIn(apiKey: string): Promise<string | undefined> {
  const answer = await callSession('POST', { authorization: `Bearer ${apiKey}` });
  if (!answer.success) return answer.error;
  sessionEnded.value = false;
  session.value = answer.data ?? null;
  return undefined;
}

export async function signOut(): Promise<void> {
  await callSession('DELETE');
  location.assign('/console'); // Anew, so that nothing of the account stays in the page.
}
