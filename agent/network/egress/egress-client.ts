import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import { awaitAnswer, beginRequest } from '../../../shared/http/send-request.ts';
import { parseJson } from '../../../shared/json.ts';

const ANSWER_MS_MAX = 10_000;

/** Asks a proxy over its control socket. */
export class EgressClient {
  readonly #socketPath: string;

  constructor(socketPath: string) {
    this.#socketPath = socketPath;
  }

  /** @throws Error when there is no proxy, or it refuses or does not answer in time */
  async call(
    method: string,
    path: string,
    body?: unknown,
    signal: AbortSignal = AbortSignal.timeout(ANSWER_MS_MAX),
  ): Promise<unknown> {
    const answer = await this.#send(method, path, body, signal);
    const answered = await text(answer);
    if (answer.statusCode === 204) return undefined;
    if (answer.statusCode === 200) return parseJson(answered);
    throw new Error(`the egress proxy refused ${method} ${path}: ${answered.slice(0, 500)}`);
  }

  /** Resolves when the proxy ends, or the signal aborts. @throws Error when there is no proxy */
  async watch(signal: AbortSignal): Promise<void> {
    const answer = await this.#send('GET', '/watch', undefined, signal);
    await once(answer.resume(), 'close').catch(() => undefined);
  }

  async #send(
    method: string,
    path: string,
    body: unknown,
    signal: AbortSignal,
  ): Promise<IncomingMessage> {
    const sent = beginRequest(false, {
      ...{ socketPath: this.#socketPath, method, path, signal },
      agent: false,
    });
    sent.end(body === undefined ? undefined : JSON.stringify(body));
    return awaitAnswer(sent);
  }
}
