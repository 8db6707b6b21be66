import { createHash } from 'node:crypto';
import {
  Agent,
  type ClientRequest,
  type IncomingMessage,
  request as httpRequest,
  type RequestListener,
  type ServerResponse,
} from 'node:http';
import { dataErrorHeaders, readDataError } from './data-protocol.ts';
import { lingerAfterAnswer } from './early-answer.ts';
import { AppError } from './errors.ts';
import { type BodyFraming, framingHeaders, framingOf, mayHaveBody } from './http-framing.ts';
import type { Logger } from './log.ts';
import { type Claims, signOnce, SingleUseTokens } from './single-use-token.ts';

/*
 * Requests from one part of the cluster to an agent's internal port: the one place that builds them,
 * and the one that lets them in. Each carries a token that names the host it is for and a digest of
 * its whole head, so the receiver knows that the head is the one that was sent, and that the body
 * ends where the sender says. A request that somebody slipped into the connection has no such token,
 * and the next one's token does not fit it.
 */

const PROOF_HEADER = 'x-berth-proof';

// RFC 9110, section 7.6.1; and those that are made anew.
const PER_CONNECTION = new Set([
  ...['connection', 'keep-alive', 'proxy-authenticate', 'proxy-authorization', 'proxy-connection'],
  ...['te', 'trailer', 'transfer-encoding', 'upgrade', 'content-length', PROOF_HEADER],
]);

/** The headers of a message that go with it, in their order and spelling; none about its framing. */
export const endToEndHeaders = (rawHeaders: readonly string[]): string[] =>
  rawHeaders.filter((_, index) => {
    const name = rawHeaders[index - (index % 2)] ?? '';
    return !PER_CONNECTION.has(name.toLowerCase());
  });

interface Head {
  readonly method: string;
  /** Path and query. */
  readonly target: string;
  readonly framing: BodyFraming;
  readonly rawHeaders: readonly string[];
}

function digestOf({ method, target, framing, rawHeaders }: Head): string {
  const parts = [method, target, framing, ...endToEndHeaders(rawHeaders)];
  return createHash('sha256').update(JSON.stringify(parts)).digest('base64url');
}

/**
 * Node encodes the head of a request that expects 100-continue as UTF-8, which would change what it
 * has read byte by byte; other heads it writes as they are. To be called when the head was queued
 * and nothing is written yet.
 */
function keepHeadBytes(sent: ClientRequest): void {
  const queued = Reflect.get(sent, 'outputData') as { encoding?: string | undefined }[];
  for (const part of queued) part.encoding = 'latin1';
}

/** What a request is for; a token for the one opens nothing of the other. */
export type PartPurpose = 'agent-data' | 'object-forward';

export interface PartRequest extends Head {
  readonly purpose: PartPurpose;
  /** What the sender vouches for. */
  readonly claims: Record<string, string>;
  /** The host that it is for. */
  readonly hostId: string;
  /** Of that host's internal port. */
  readonly baseUrl: string;
  readonly signal?: AbortSignal | undefined;
}

/** The sending side, over connections that are kept. */
export class PartRequests {
  readonly #secret: string;
  readonly #agent: Agent;

  /** @param secret of the cluster */
  constructor(secret: string, freeSocketsPerHost: number) {
    this.#secret = secret;
    this.#agent = new Agent({ keepAlive: true, maxFreeSockets: freeSocketsPerHost });
  }

  /**
   * Begins a request; its body, if the framing announces one, is the caller's to write. The
   * connection serves no other request when the answer begins before all of the body is sent.
   */
  begin(wanted: PartRequest): ClientRequest {
    const { method, target, purpose, claims, hostId, baseUrl, signal } = wanted;
    // Node would announce chunks for a method that may have a body, whatever is said of none.
    const isEmpty = wanted.framing === 'none' && mayHaveBody(method);
    const framing = isEmpty ? 0 : wanted.framing;
    const request = digestOf({ ...wanted, framing });
    const token = signOnce(this.#secret, purpose, { ...claims, hostId, request });
    const { hostname, port } = new URL(baseUrl);
    const headers = [
      ...endToEndHeaders(wanted.rawHeaders),
      ...framingHeaders(framing),
      ...[PROOF_HEADER, token],
    ];
    const sent = httpRequest({
      agent: this.#agent,
      ...{ hostname, port, method, path: target, headers, signal },
    });
    keepHeadBytes(sent);
    sent.once('response', () => {
      if (!sent.writableFinished) sent.shouldKeepAlive = false;
    });
    return sent;
  }

  close(): void {
    this.#agent.destroy();
  }
}

/** @throws AppError when the host that answered did not take the request for one of the cluster's */
export function checkTaken(answer: IncomingMessage): void {
  const error = readDataError(answer.headers);
  if (error === undefined) return;
  answer.resume();
  throw error;
}

export type PartRequestHandler = (
  request: IncomingMessage,
  response: ServerResponse,
  claims: Claims,
) => void;

/** The receiving side, of one host. */
export class PartRequestGate {
  readonly #hostId: string;
  readonly #tokens: SingleUseTokens;
  readonly #log: Logger;

  /** @param secret of the cluster */
  constructor({ secret, hostId, log }: { secret: string; hostId: string; log: Logger }) {
    this.#tokens = new SingleUseTokens(secret);
    this.#hostId = hostId;
    this.#log = log;
  }

  /**
   * Serves requests of the cluster, for this host and never seen before. Any other is answered here
   * and ends its connection.
   * @param handle gets what the sender vouches for
   */
  admitting(purpose: PartPurpose, handle: PartRequestHandler): RequestListener {
    return (request, response) => {
      const verdict = this.#read(purpose, request);
      if (typeof verdict === 'string') this.#refuse(verdict, request, response);
      else handle(request, response, verdict);
    };
  }

  #refuse(reason: string, request: IncomingMessage, response: ServerResponse): void {
    this.#log.warn({ reason }, 'partRequest:refused');
    lingerAfterAnswer(request, response);
    // With a new token it may be taken: this one can have come too late.
    const message = `the host did not take this for a request of its cluster: ${reason}`;
    const error = new AppError('unavailable', message);
    response.writeHead(403, dataErrorHeaders(error)).end();
  }

  #read(purpose: PartPurpose, request: IncomingMessage): Claims | string {
    const { method = '', url: target = '', rawHeaders, headers } = request;
    const token = headers[PROOF_HEADER];
    if (typeof token !== 'string') return 'no token';
    const claims = this.#tokens.read(purpose, token);
    if (typeof claims === 'string') return claims;
    if (claims['hostId'] !== this.#hostId) return 'another host';
    const digest = digestOf({ method, target, framing: framingOf(request), rawHeaders });
    return claims['request'] === digest ? claims : 'another request';
  }
}
