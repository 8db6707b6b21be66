import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import {
  createServer as createTlsServer,
  type Server as TlsServer,
  type ServerOptions,
} from 'node:https';
import type { Socket } from 'node:net';
import { toError } from '../errors.ts';
import { Connections, type ConnectionEnd, type ConnectionLimits } from './connections.ts';
import { noteExpectation } from './continue-requests.ts';
import { lingerAfterAnswer } from './early-answer.ts';
import { type Refusal, serveStrictly, STRICT_HTTP } from './strict-http.ts';
import type { Logger } from '../log.ts';
import type { Certificates } from '../tls/certificates.ts';
import { followCertificates, serverTlsOptions } from '../tls/server-tls.ts';
import { Counter, Gauge, type Registry } from '../metrics.ts';

/** Renders the answer to a request that is refused before a handler sees it. */
export type RenderRefusal = (
  code: 'bad_request' | 'no_capacity',
  problem: string,
  request: IncomingMessage,
) => Refusal;

export interface HttpServerOptions {
  /**
   * Names the server in log events and metrics; `own`: for requests of a control node to itself.
   */
  readonly name: 'public' | 'internal' | 'ingress' | 'own';
  readonly host: string;
  readonly port: number;
  readonly headerBytesMax: number;
  readonly connections: ConnectionLimits;
  readonly render: RenderRefusal;
  /** Whether something listens for the server's `upgrade` event. */
  readonly hasUpgrades?: boolean;
  /** Speaks TLS with this certificate, which may be replaced meanwhile. */
  readonly tls?: Certificates | undefined;
  /** Several threads listen on the port, and the kernel divides connections among them. */
  readonly isShared?: boolean;
  /** See `findFramingFault`. */
  readonly anyMethodHasBody?: boolean;
  /** Whether other requests wait for the places of those that are being served. */
  readonly isCrowded?: () => boolean;
  /** Whether it is about to stop: each answer is the last one of its connection. */
  readonly isLeaving?: () => boolean;
  readonly log: Logger;
  readonly metrics: HttpMetrics;
}

/** Settles when the request was answered or its connection destroyed. */
export type RequestHandler = (request: IncomingMessage, response: ServerResponse) => unknown;

export interface HttpMetrics {
  readonly connections: Gauge<'server'>;
  readonly ends: Counter<'server' | 'reason'>;
}

const HEADERS_MS_MAX = 20_000;
/**
 * Longer than load balancers keep an unused connection, usually 60 s, so that they close it first.
 */
const KEEP_ALIVE_MS = 65_000;
/** How long a connection may be silent before the kernel probes whether its peer is there. */
const PROBED_AFTER_MS = 60_000;
const CHECKS_PER_STALL = 16;
const CHECK_EVERY_MS_MAX = 2_000;
/** A flood is logged as one event per interval, not one per connection. */
const LOG_EVERY_MS = 10_000;
const RETRY_AFTER_SECONDS = 2;
const HANDSHAKE_MS_MAX = 10_000;

export function createHttpMetrics(registry: Registry): HttpMetrics {
  return {
    connections: new Gauge({
      name: 'berth_connections',
      help: 'Connections that are open',
      labelNames: ['server'] as const,
      registers: [registry],
    }),
    ends: new Counter({
      name: 'berth_connections_ended_total',
      help: 'Connections that the limits ended: idle ones dropped, refused ones, stalled transfers',
      labelNames: ['server', 'reason'] as const,
      registers: [registry],
    }),
  };
}

/**
 * Starts an HTTP server whose callers cannot exhaust the process. It limits the number of
 * connections, the time for a request's head, and how slowly bytes may move, but not the total time
 * of a request. When a handler fails, the server answers 500.
 */
export async function startHttpServer(
  options: HttpServerOptions,
  handle: RequestHandler,
): Promise<Server> {
  const { name, log, metrics, render, headerBytesMax } = options;
  const server = newServer(options.tls, {
    ...STRICT_HTTP,
    maxHeaderSize: headerBytesMax,
    headersTimeout: HEADERS_MS_MAX,
    requestTimeout: 0, // No limit on the total time: the transfer rate is limited instead.
    connectionsCheckingInterval: HEADERS_MS_MAX / 4,
    keepAliveTimeout: KEEP_ALIVE_MS,
    // Ends connections on which nothing is due, as WebSockets and streams of events, once their
    // peer has gone without a word.
    ...{ keepAlive: true, keepAliveInitialDelay: PROBED_AFTER_MS },
  });
  const onEnd = limitedLog(options);
  const connections = new Connections(options.connections, onEnd);
  serveStrictly(server, {
    handle: (request, response, isContinueAwaited) => {
      // The handler decides whether it wants the body.
      if (isContinueAwaited) noteExpectation(request, response);
      if (options.isLeaving?.() === true) response.setHeader('connection', 'close');
      if (connections.begin(request, response)) guard(handle, request, response, log);
      else refuse(request, response, render, 'too many connections; try again later');
    },
    render: (request, problem) => render('bad_request', problem, request),
    onRefused: (_request, problem) => log.info({ server: name, problem }, 'request:refused'),
    anyMethodHasBody: options.anyMethodHasBody === true,
  });
  // Until its handshake is done, a TLS connection counts for the kernel's and Node's bounds alone.
  if (options.tls !== undefined) server.maxConnections = 2 * options.connections.max;
  server.on(options.tls === undefined ? 'connection' : 'secureConnection', (socket: Socket) => {
    connections.add(socket);
    metrics.connections.set({ server: name }, connections.count);
    socket.once('close', () => metrics.connections.set({ server: name }, connections.count));
  });
  if (options.hasUpgrades === true) {
    server.on('upgrade', ({ socket }: IncomingMessage) => connections.keep(socket));
  }
  const { stalledMs } = options.connections.transfers;
  const everyMs = Math.min(CHECK_EVERY_MS_MAX, stalledMs / CHECKS_PER_STALL);
  const checking = setInterval(
    () => connections.dropStalled(options.isCrowded?.() === true),
    everyMs,
  );
  checking.unref();
  server.once('close', () => clearInterval(checking));
  const { port, host, isShared = false } = options;
  server.listen({ port, host, reusePort: isShared });
  await once(server, 'listening');
  // Accepting failed, for example for want of descriptors. The kernel keeps the connection queued.
  server.on('error', () => onEnd('not_accepted'));
  return server;
}

function newServer(tls: HttpServerOptions['tls'], options: ServerOptions): Server | TlsServer {
  if (tls === undefined) return createServer(options);
  const server = createTlsServer({
    ...{ ...options, ...serverTlsOptions(tls) },
    handshakeTimeout: HANDSHAKE_MS_MAX,
  });
  followCertificates(server, tls);
  return server;
}

function guard(
  handle: RequestHandler,
  request: IncomingMessage,
  response: ServerResponse,
  log: Logger,
): void {
  const settle = async (): Promise<void> => {
    try {
      await handle(request, response);
    } catch (error) {
      log.error({ err: toError(error) }, 'request:failed');
      if (response.headersSent) response.destroy();
      else response.writeHead(500, { connection: 'close' }).end();
    }
  };
  settle().catch(() => response.destroy());
}

/** Answers 503, so that the client tries again. */
export function refuse(
  request: IncomingMessage,
  response: ServerResponse,
  render: RenderRefusal,
  problem: string,
): void {
  const { contentType, body } = render('no_capacity', problem, request);
  lingerAfterAnswer(request, response);
  response.writeHead(503, {
    'content-type': contentType,
    'retry-after': String(RETRY_AFTER_SECONDS),
  });
  response.end(request.method === 'HEAD' ? undefined : body);
}

/** Counts every end, and logs the counts at most once in `LOG_EVERY_MS`. */
function limitedLog({ name, log, metrics }: HttpServerOptions): (why: ConnectionEnd) => void {
  const none = { idle_dropped: 0, refused: 0, stalled: 0, not_accepted: 0 };
  const counts = { ...none };
  let timer: NodeJS.Timeout | undefined;
  const report = (): void => {
    timer = undefined;
    log.warn({ server: name, ...counts }, 'connections:limited');
    Object.assign(counts, none);
  };
  return (why) => {
    metrics.ends.inc({ server: name, reason: why });
    counts[why] += 1;
    timer ??= setTimeout(report, LOG_EVERY_MS).unref();
  };
}
