import { createHash } from 'node:crypto';
import type {
  Agent,
  ClientRequest,
  IncomingMessage,
  RequestListener,
  ServerResponse,
} from 'node:http';
import { dataErrorHeaders, readDataError } from './data-protocol.ts';
import { lingerAfterAnswer } from '../http/early-answer.ts';
import { AppError } from '../errors.ts';
import { awaitAnswer, beginRequest } from '../http/send-request.ts';
import { LIMITS } from '../limits.ts';
import {
  type BodyFraming,
  framingHeaders,
  framingOf,
  framingToSend,
} from '../http/http-framing.ts';
import type { Logger } from '../log.ts';
import { currentTraceparent } from '../spans.ts';
import { type ClusterTls, partAgent } from '../tls/part-connections.ts';
import type { Ring } from '../secrets.ts';
import { type Claims, signOnce, SingleUseTokens } from './single-use-token.ts';

/*
 * Requests from one part of the cluster to an agent's internal port: this module alone builds them
 * and admits them (docs/decisions/0019). Each carries a token that names the receiving host and a
 * digest of the request's whole head, so the receiver knows that the head is what was sent and that
 * the body ends where the sender says. A request smuggled into the connection has no such token,
 * and the token of the request after it does not fit.
 */

const PROOF_HEADER = 'x-berth-proof';

// Headers of one connection only (RFC 9110, section 7.6.1), and those that are written anew.
const PER_CONNECTION = new Set([
  ...['connection', 'keep-alive', 'proxy-authenticate', 'proxy-authorization', 'proxy-connection'],
  ...['te', 'trailer', 'transfer-encoding', 'upgrade', 'content-length', PROOF_HEADER],
]);

/**
 * The headers to forward, in their order and spelling: none about the connection or the framing.
 */
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

/** The purpose of a request. A token for one purpose is refused for the other. */
export type PartPurpose = 'agent-data' | 'object-forward' | 'sandbox-files' | 'link-request';

export interface PartRequest extends Head {
  readonly purpose: PartPurpose;
  /** Facts that the sender vouches for, such as the client's address. */
  readonly claims: Record<string, string>;
  /** The receiving host. */
  readonly hostId: string;
  /** URL of that host's internal port. */
  readonly baseUrl: string;
  readonly signal?: AbortSignal | undefined;
}

/** The proof that a part of the cluster sends with a request. */
export interface PartAuth {
  readonly clusterSecrets: Ring<string>;
  readonly clusterTls?: ClusterTls;
}

/** The sending side. Connections are kept alive. */
export class PartRequests {
  readonly #secrets: Ring<string>;
  readonly #isSecure: boolean;
  readonly #agent: Agent;

  constructor({ clusterSecrets, clusterTls }: PartAuth, freeSocketsPerHost: number) {
    this.#secrets = clusterSecrets;
    this.#isSecure = clusterTls !== undefined;
    this.#agent = partAgent(clusterTls, { keepAlive: true, maxFreeSockets: freeSocketsPerHost });
  }

  /**
   * Begins a request. If the framing announces a body, the caller writes it. When the answer begins
   * before the whole body was sent, the connection is not used for another request.
   */
  begin(wanted: PartRequest): ClientRequest {
    const { method, target, purpose, claims, hostId, baseUrl, signal } = wanted;
    const framing = framingToSend(wanted.framing, method);
    const request = digestOf({ ...wanted, framing });
    const traceparent = currentTraceparent();
    const traced = traceparent === undefined ? claims : { ...claims, traceparent };
    const token = signOnce(this.#secrets, purpose, { ...traced, hostId, request });
    const { hostname, port } = new URL(baseUrl);
    const headers = [
      ...endToEndHeaders(wanted.rawHeaders),
      ...framingHeaders(framing),
      ...[PROOF_HEADER, token],
    ];
    const sent = beginRequest(this.#isSecure, {
      agent: this.#agent,
      ...{ hostname, port, method, path: target, headers, signal },
      // An answer may repeat what the request gave, such as the values of `response-*` parameters.
      maxHeaderSize: LIMITS.internalHeaderBytesMax,
    });
    sent.once('response', () => {
      if (!sent.writableFinished) sent.shouldKeepAlive = false;
    });
    return sent;
  }

  /**
   * Sends a request without a body. Its answer is the caller's to read or to destroy.
   * @param timeoutMs how long the answer may take to begin
   * @throws Error as Node's requests fail
   */
  async ask(wanted: Omit<PartRequest, 'framing'>, timeoutMs: number): Promise<IncomingMessage> {
    const request = this.begin({ ...wanted, framing: 'none' });
    const overdue = setTimeout(
      () => request.destroy(new Error('the host did not answer in time')),
      timeoutMs,
    );
    try {
      request.end();
      return await awaitAnswer(request);
    } finally {
      clearTimeout(overdue);
    }
  }

  close(): void {
    this.#agent.destroy();
  }
}

/** @throws AppError when the host that answered did not accept the request as the cluster's own */
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

interface GateOptions {
  readonly clusterSecrets: Ring<string>;
  readonly hostId: string;
  readonly log: Logger;
}

/** The receiving side of one host. */
export class PartRequestGate {
  readonly #hostId: string;
  readonly #tokens: SingleUseTokens;
  readonly #log: Logger;

  constructor({ clusterSecrets, hostId, log }: GateOptions) {
    this.#tokens = new SingleUseTokens(clusterSecrets);
    this.#hostId = hostId;
    this.#log = log;
  }

  /**
   * Wraps a handler so that it sees only requests of the cluster for this host, each once. Any
   * other request is refused here and ends its connection.
   * @param handle receives the facts that the sender vouches for
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
    // `unavailable`, because a repetition with a new token may succeed: this one may only be late.
    const message = `the host did not accept this as a request of its cluster: ${reason}`;
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
