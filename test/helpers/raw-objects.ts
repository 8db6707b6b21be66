import { once } from 'node:events';
import { type ClientRequest, type IncomingMessage, request as httpRequest } from 'node:http';
import { text } from 'node:stream/consumers';
import { textsOf } from './objects.ts';

export interface Sending {
  readonly method?: string;
  readonly headers?: Record<string, string>;
  /** The client's own address. */
  readonly localAddress?: string;
}

/**
 * A request whose head is sent and whose body is the test's to send, on a connection of its own.
 */
export function beginRequest(url: string, options: Sending = {}): ClientRequest {
  const sent = httpRequest(url, { agent: false, ...options });
  sent.on('error', () => undefined); // Told by whoever waits for the answer.
  sent.flushHeaders();
  return sent;
}

export interface Answer {
  readonly status: number;
  readonly code: string | undefined;
}

/** Waits for the head of the answer. @throws Error when the connection breaks before it */
export async function answerTo(sent: ClientRequest): Promise<IncomingMessage> {
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  answer.on('error', () => undefined);
  return answer;
}

/** Status and error code of a request whose body was sent. */
export async function outcomeOf(sent: ClientRequest): Promise<Answer> {
  const answer = await answerTo(sent);
  const [code] = textsOf(await text(answer), 'Code');
  return { status: answer.statusCode ?? 0, code };
}

/** Reads on to the end. @returns whether the answer came whole */
export async function isWhole(answer: IncomingMessage): Promise<boolean> {
  answer.resume();
  if (!answer.closed) await once(answer, 'close').catch(() => undefined);
  return answer.complete;
}
