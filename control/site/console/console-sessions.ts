import { randomUUID } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import type { EndedSessions } from '../../../shared/directory/ended-sessions.ts';
import { SITE_LIMITS } from '../limits.ts';
import { parseJson } from '../../../shared/json.ts';
import { type Ring, seal, sha256, unseal } from '../../../shared/secrets.ts';

/** Sent with every call of the console's pages: no other origin can send it without a preflight. */
const PAGE_HEADER = 'x-berth-console';

export interface ConsoleSession {
  readonly id: string;
  readonly apiKey: string;
  /** Milliseconds since the epoch. */
  readonly expiresAt: number;
}

interface ConsoleSessionOptions {
  readonly ended: Pick<EndedSessions, 'add' | 'has'>;
  readonly cluster: { readonly encryptionKeys: Ring<Buffer>; readonly region: string };
  readonly publicBaseUrl: string;
}

/**
 * Whether the console's own page sent a request. SameSite alone does not say so: ports of a host,
 * and the domains of one company, are one site. Browsers name the site of a request only where they
 * trust the connection, and the origin only of some requests, so whatever they name must fit.
 */
export function isOwnPage({ headers }: IncomingMessage): boolean {
  const { origin, host, 'sec-fetch-site': site } = headers;
  if (headers[PAGE_HEADER] === undefined) return false;
  if (site !== undefined && site !== 'same-origin') return false;
  return origin === undefined || (URL.canParse(origin) && new URL(origin).host === host);
}

/**
 * Sessions of the console: an API key, sealed into a cookie that no script can read. Control keeps
 * nothing of them but the ids of those that were ended, so every control node knows them; a session
 * ends with its key, too.
 */
export class ConsoleSessions {
  readonly #keys: Ring<Buffer>;
  readonly #context: string;
  readonly #name: string;
  readonly #attributes: string;
  readonly #ended: ConsoleSessionOptions['ended'];

  constructor({ cluster, publicBaseUrl, ended }: ConsoleSessionOptions) {
    this.#ended = ended;
    this.#keys = cluster.encryptionKeys;
    this.#context = `console-session:${cluster.region}`;
    const isSecure = publicBaseUrl.startsWith('https:');
    // The prefix makes browsers refuse such a cookie from any other host or path.
    this.#name = `${isSecure ? '__Host-' : ''}berth-session`;
    this.#attributes = `Path=/; HttpOnly; SameSite=Strict${isSecure ? '; Secure' : ''}`;
  }

  /** @returns the value of `Set-Cookie`, and when the session ends */
  begin(apiKey: string, now = Date.now()): { cookie: string; expiresAt: number } {
    const expiresAt = now + SITE_LIMITS.consoleSessionMs;
    const session: ConsoleSession = { id: randomUUID(), apiKey, expiresAt };
    const value = seal(this.#keys, JSON.stringify(session), this.#context);
    const seconds = SITE_LIMITS.consoleSessionMs / 1000;
    return { cookie: `${this.#name}=${value}; Max-Age=${seconds}; ${this.#attributes}`, expiresAt };
  }

  /** The value of `Set-Cookie` that makes a browser forget its session. */
  get forgotten(): string {
    return `${this.#name}=; Max-Age=0; ${this.#attributes}`;
  }

  /**
   * The session of a request of the console's own page, if it has one that has not ended. Of two
   * cookies of the name one may be another site's, so neither counts.
   * @throws Error when Redis does not answer
   */
  async read(request: IncomingMessage, now = Date.now()): Promise<ConsoleSession | undefined> {
    if (!isOwnPage(request)) return undefined;
    const [sealed = '', ...others] = this.#cookiesOf(request);
    const session = others.length === 0 ? this.#unseal(sealed) : undefined;
    if (session === undefined || session.expiresAt <= now) return undefined;
    return (await this.#ended.has(session.id)) ? undefined : session;
  }

  /** Ends every session whose cookie the request has, wherever that was copied to. */
  async end(request: IncomingMessage): Promise<void> {
    if (!isOwnPage(request)) return;
    for (const sealed of this.#cookiesOf(request)) {
      const session = this.#unseal(sealed);
      if (session !== undefined) await this.#ended.add(session.id, session.expiresAt);
    }
  }

  #cookiesOf({ headers }: IncomingMessage): string[] {
    const prefix = `${this.#name}=`;
    const pairs = (headers.cookie ?? '').split(';').map((pair) => pair.trim());
    return pairs.filter((pair) => pair.startsWith(prefix)).map((pair) => pair.slice(prefix.length));
  }

  /**
   * Gives a request of the console's page, which cannot know its key, the key of its session.
   * Cookies go no further than here, whoever sent them.
   * @throws Error when Redis does not answer
   */
  async authorize(request: IncomingMessage): Promise<void> {
    const { headers } = request;
    if (headers.cookie === undefined) return;
    const session = headers.authorization === undefined ? await this.read(request) : undefined;
    request.rawHeaders = request.rawHeaders.filter(
      (_, index, all) => all[index - (index % 2)]?.toLowerCase() !== 'cookie',
    );
    if (session === undefined) return;
    headers.authorization = `Bearer ${session.apiKey}`;
    request.rawHeaders.push('Authorization', headers.authorization);
  }

  /** @returns undefined for what was not sealed here, or is of another version */
  #unseal(sealed: string): ConsoleSession | undefined {
    if (sealed.length > SITE_LIMITS.consoleCookieLengthMax) return undefined;
    try {
      const text = unseal(this.#keys, sealed, this.#context);
      // Nodes of earlier versions seal no id.
      const { id = sha256(text), apiKey, expiresAt } = parseJson(text) as Partial<ConsoleSession>;
      if (typeof id !== 'string' || typeof apiKey !== 'string') return undefined;
      return typeof expiresAt === 'number' ? { id, apiKey, expiresAt } : undefined;
    } catch {
      return undefined;
    }
  }
}
