import type { ClientRequest, IncomingMessage, ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import Type from 'typebox';
import { lingerAfterAnswer } from '../http/early-answer.ts';
import { type BodyFraming, framingOf } from '../http/http-framing.ts';
import { awaitAnswer } from '../http/send-request.ts';
import { checkTaken, endToEndHeaders, type PartAuth, PartRequests } from './part-requests.ts';
import type { Claims } from './single-use-token.ts';
import { compile } from '../validate.ts';

/*
 * Forwards requests of the object API: control to an agent, and an agent to the disk's lease
 * holder. Method, target, headers and body stay as they came, so that their signatures remain
 * valid; only the framing of the body is written anew (docs/decisions/0019). A signed header
 * carries the client's address, on which `allowedIps` decides.
 */

const FREE_SOCKETS_PER_HOST = 64;

const Origin = Type.Object({
  /** The client's IP address. */
  address: Type.String({ minLength: 1, maxLength: 64 }),
  /** How many more times the request may be forwarded. */
  hopsLeft: Type.Enum(['0', '1']),
  /** Set when the client did not say how long its body is, which forwarding hides. */
  lacksLength: Type.Optional(Type.Literal('true')),
});
export type Origin = Type.Static<typeof Origin>;

const checkOrigin = compile(Origin);

/** Reads the origin of a forwarded request. @throws AppError unless the claims are a forwarder's */
export const readOrigin = (claims: Claims): Origin => checkOrigin(claims, 'forwarded request');

/** The host that a request is forwarded to. */
export interface ForwardTarget {
  readonly hostId: string;
  /** URL of the host's internal port. */
  readonly baseUrl: string;
  readonly origin: Origin;
  /** Headers that are set on the response and that the answer does not replace; in lower case. */
  readonly fixedHeaders?: ReadonlySet<string>;
}

const NONE: ReadonlySet<string> = new Set();

/** Sends the body. Destroys the connection when its length differs from the announced one. */
function sendBody(request: IncomingMessage, upstream: ClientRequest, framing: BodyFraming): void {
  if (framing === 'none' || framing === 0) {
    upstream.end();
    return;
  }
  if (framing !== 'chunked') {
    let bytes = 0;
    const check = (isWrong: boolean): void => {
      if (isWrong)
        upstream.destroy(new Error('the body is shorter or longer than its Content-Length'));
    };
    // Added before pipe's own listener, so that no byte beyond the announced length is written.
    request.on('data', (chunk: Buffer) => check((bytes += chunk.length) > framing));
    request.once('end', () => check(bytes < framing));
  }
  request.pipe(upstream);
}

/** The answer's Content-Length header if it has one; otherwise Node delimits the body itself. */
function lengthHeader({ headers }: IncomingMessage): string[] {
  const length = headers['content-length'];
  return length === undefined ? [] : ['Content-Length', String(Number(length))];
}

/** The headers of an answer that are passed on. */
function passedOn(answer: IncomingMessage, fixed: ReadonlySet<string>): string[] {
  const headers = [...endToEndHeaders(answer.rawHeaders), ...lengthHeader(answer)];
  return headers.filter((_, index) => {
    const name = headers[index - (index % 2)] ?? '';
    return !fixed.has(name.toLowerCase());
  });
}

/** The headers of a request; HTTP/1.0 has no expectations, which its servers ignore. */
const headersOf = ({ httpVersion, rawHeaders }: IncomingMessage): string[] =>
  httpVersion === '1.0'
    ? rawHeaders.filter((_, index) => rawHeaders[index - (index % 2)]?.toLowerCase() !== 'expect')
    : rawHeaders;

/** Forwards requests over connections that are kept alive. */
export class RequestForwarder {
  readonly #requests: PartRequests;

  constructor(auth: PartAuth) {
    this.#requests = new PartRequests(auth, FREE_SOCKETS_PER_HOST);
  }

  /**
   * Forwards a request and passes its answer back, both as streams. A client that expects
   * `100 Continue` gets it when the other side sends it. Headers of the answer replace those that
   * are set on the response, unless the target fixes them. When the answer breaks off, the caller's
   * connection is destroyed. Trailers are dropped in both directions.
   * @throws Error when no answer came; the caller has not been answered then
   */
  async forward(
    request: IncomingMessage,
    response: ServerResponse,
    { hostId, baseUrl, origin, fixedHeaders = NONE }: ForwardTarget,
  ): Promise<void> {
    const { method = '', url: target = '' } = request;
    const rawHeaders = headersOf(request);
    const framing = framingOf(request);
    const head = { method, target, framing, rawHeaders };
    const purpose = 'object-forward';
    const claims: Origin = framing === 'none' ? { ...origin, lacksLength: 'true' } : origin;
    const upstream = this.#requests.begin({ ...head, purpose, claims, hostId, baseUrl });
    response.once('close', () => upstream.destroy());
    upstream.once('continue', () => response.writeContinue());
    sendBody(request, upstream, framing);
    const answer = await awaitAnswer(upstream);
    checkTaken(answer);
    if (!request.complete) {
      request.unpipe(upstream); // The answer is here: the rest of the body is not needed.
      lingerAfterAnswer(request, response);
    }
    response.writeHead(answer.statusCode ?? 502, passedOn(answer, fixedHeaders));
    await pipeline(answer, response);
  }

  close(): void {
    this.#requests.close();
  }
}
