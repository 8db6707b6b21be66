import { once } from 'node:events';
import type { ClientRequest, IncomingMessage, ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import Type from 'typebox';
import { lingerAfterAnswer } from './early-answer.ts';
import { type BodyFraming, framingOf } from './http-framing.ts';
import { checkTaken, endToEndHeaders, PartRequests } from './part-requests.ts';
import type { Claims } from './single-use-token.ts';
import { compile } from './validate.ts';

/*
 * Requests of the object API travel between the parts with their method, target, headers and body
 * as they came, so that their signatures stay valid: control passes them to an agent, an agent to
 * the disk's handler. How the body is delimited is written anew. A signed header says who the client
 * is, since its address decides what it may do.
 */

const FREE_SOCKETS_PER_HOST = 64;

const Origin = Type.Object({
  /** The client's IP address. */
  address: Type.String({ minLength: 1, maxLength: 64 }),
  /** How many times more the request may be passed on. */
  hopsLeft: Type.Enum(['0', '1']),
});
export type Origin = Type.Static<typeof Origin>;

const checkOrigin = compile(Origin);

/** Who sent a forwarded request. @throws AppError unless the claims are those of a forwarder */
export const readOrigin = (claims: Claims): Origin => checkOrigin(claims, 'forwarded request');

/** Where a request goes. */
export interface ForwardTarget {
  readonly hostId: string;
  /** Of the host's internal port. */
  readonly baseUrl: string;
  readonly origin: Origin;
}

/** Sends the body, and breaks the connection when its length is not the one that was announced. */
function sendBody(request: IncomingMessage, upstream: ClientRequest, framing: BodyFraming): void {
  if (framing === 'none' || framing === 0) {
    upstream.end();
    return;
  }
  if (framing !== 'chunked') {
    let bytes = 0;
    const check = (isWrong: boolean): void => {
      if (isWrong) upstream.destroy(new Error('the body has not the length that was announced'));
    };
    // Before pipe's own listeners, so that no byte too many is written.
    request.on('data', (chunk: Buffer) => check((bytes += chunk.length) > framing));
    request.once('end', () => check(bytes < framing));
  }
  request.pipe(upstream);
}

/** The length of an answer as it is passed on; without one Node delimits the body itself. */
function lengthHeader({ headers }: IncomingMessage): string[] {
  const length = headers['content-length'];
  return length === undefined ? [] : ['Content-Length', String(Number(length))];
}

/** Passes requests on, over connections that are kept. */
export class RequestForwarder {
  readonly #requests: PartRequests;

  /** @param secret of the cluster */
  constructor(secret: string) {
    this.#requests = new PartRequests(secret, FREE_SOCKETS_PER_HOST);
  }

  /**
   * Passes a request on and its answer back, both as streams; a client that waits for it is told
   * to go on when the other side says so. When the answer breaks off in its middle, so does the
   * caller's connection. Trailers of either are dropped.
   * @throws Error when there is no answer; nothing was answered then
   */
  async forward(
    request: IncomingMessage,
    response: ServerResponse,
    { hostId, baseUrl, origin }: ForwardTarget,
  ): Promise<void> {
    const { method = '', url: target = '', rawHeaders } = request;
    const framing = framingOf(request);
    const head = { method, target, framing, rawHeaders };
    const purpose = 'object-forward';
    const upstream = this.#requests.begin({ ...head, purpose, claims: origin, hostId, baseUrl });
    response.once('close', () => upstream.destroy());
    upstream.once('continue', () => response.writeContinue());
    sendBody(request, upstream, framing);
    const [answer] = (await once(upstream, 'response')) as [IncomingMessage];
    upstream.on('error', () => undefined);
    checkTaken(answer);
    if (!request.complete) {
      request.unpipe(upstream); // Nobody wants the rest of the body.
      lingerAfterAnswer(request, response);
    }
    const headers = [...endToEndHeaders(answer.rawHeaders), ...lengthHeader(answer)];
    response.writeHead(answer.statusCode ?? 502, headers);
    await pipeline(answer, response);
  }

  close(): void {
    this.#requests.close();
  }
}
