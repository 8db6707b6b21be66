import {
  type ClientRequest,
  type IncomingMessage,
  type ServerResponse,
  STATUS_CODES,
} from 'node:http';
import { errnoOf, toError } from '../../../shared/errors.ts';
import { isAbandoned, lingerAfterAnswer } from '../../../shared/http/early-answer.ts';
import { framingOf } from '../../../shared/http/http-framing.ts';
import { runForConnection } from './connection-work.ts';
import type { GuestConnection } from './guest-connection.ts';
import { sendAnswer } from './send-answer.ts';
import {
  isRefusal,
  openRequest,
  planRequest,
  type Refusal,
  requestExtras,
  type UpstreamRequest,
} from './upstream-request.ts';

/** A guest's request, and the answer to it. */
interface Exchange {
  readonly connection: GuestConnection;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** Whether the guest waits for 100 Continue before it sends the body. */
  readonly isContinueAwaited: boolean;
}

/** Judges a request and sends it on, or says why not. Resolves when that has ended. */
export async function forwardRequest(exchange: Exchange): Promise<void> {
  const { connection, request, response } = exchange;
  if (request.socket.destroyed || isAbandoned(request)) return;
  const ended = new Promise<void>((resolve) => {
    response.once('close', resolve);
  });
  const host = (request.headers.host ?? connection.address).replace(/:\d+$/u, '').toLowerCase();
  const endFlight = connection.slot.flights.beginRequest(host);
  response.once('close', endFlight);
  let planned;
  try {
    planned = await planRequest(connection, request);
  } catch (error) {
    planned = { status: 502, problem: `no resolver answers: ${toError(error).message}` } as const;
  }
  if (isRefusal(planned)) refuse(request, response, planned);
  else send(exchange, planned);
  await ended;
}

function send(exchange: Exchange, planned: UpstreamRequest, isRetry = false): void {
  const { connection, request, response, isContinueAwaited } = exchange;
  if (response.destroyed) return; // The guest has hung up, and nothing would end the upstream request.
  const extras = requestExtras(request, isContinueAwaited);
  const upstream = openRequest(connection, planned, extras, { isFresh: isRetry });
  const guard = (work: () => void): void =>
    runForConnection('egress.forward', () => request.socket.destroy(), work);
  let isAnswered = false;
  upstream.on('continue', () => {
    if (isContinueAwaited && !isAnswered) response.writeContinue();
  });
  upstream.once('response', (answer) => {
    isAnswered = true;
    guard(() => {
      if (sendAnswer(answer, response, planned.secrets)) return;
      upstream.destroy();
      refuse(request, response, { status: 502, problem: 'the answer cannot be passed on' });
    });
  });
  upstream.on('error', (error) => {
    request.unpipe(upstream);
    const problem = describeFailure(planned.host, error);
    guard(() => {
      if (isAnswered) response.destroy();
      else if (!isRetry && canRepeat(upstream, request)) send(exchange, planned, true);
      else refuse(request, response, { status: 502, problem });
    });
  });
  response.once('close', () => {
    if (!response.writableFinished) upstream.destroy();
  });
  request.pipe(upstream);
}

/** RFC 9110, 9.2.2: what else a proxy may not repeat by itself could have its effect twice. */
const IDEMPOTENT = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE', 'PUT', 'DELETE']);

/** The server closed a kept connection just when it was used again; nothing of the body is gone. */
const canRepeat = (upstream: ClientRequest, request: IncomingMessage): boolean =>
  upstream.reusedSocket && IDEMPOTENT.has(request.method ?? '') && framingOf(request) === 'none';

function describeFailure(host: string, error: Error): string {
  const code = errnoOf(error);
  return `${host} could not be reached${code === undefined ? '' : ` (${code})`}`;
}

function refuse(request: IncomingMessage, response: ServerResponse, refusal: Refusal): void {
  if (response.headersSent) {
    response.destroy();
    return;
  }
  const body = `Berth: ${refusal.problem}\n`;
  lingerAfterAnswer(request, response);
  const headers = { 'content-type': 'text/plain', 'content-length': Buffer.byteLength(body) };
  const reason = STATUS_CODES[refusal.status] ?? ''; // Not that of an answer which could not be begun.
  response
    .writeHead(refusal.status, reason, headers)
    .end(request.method === 'HEAD' ? undefined : body);
}
