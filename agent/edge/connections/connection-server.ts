import type { IncomingMessage, Server } from 'node:http';
import type { Duplex } from 'node:stream';
import { type WebSocket, WebSocketServer } from 'ws';
import { AppError, toError } from '../../../shared/errors.ts';
import { allowsUpgrade } from '../../../shared/http/cross-origin.ts';
import { findFramingFault } from '../../../shared/http/http-framing.ts';
import { EDGE_LIMITS } from '../limits.ts';
import type { ConnectionClaims } from '../../../shared/links/connection-token.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SandboxActor } from '../../sandboxes/lifecycle/sandbox-actor.ts';
import { ProcessConnection } from './process-connection.ts';

export interface ConnectionServerOptions {
  /** Verifies the tokens of connection URLs. */
  readonly keys: {
    readonly isReady: boolean;
    verify(token: string): ConnectionClaims | undefined;
  };
  /** Origins whose pages may connect. */
  readonly allowedOrigins: readonly string[];
  /** @throws AppError `not_found` */
  readonly find: (ref: { accountId: string; sandboxId: string }) => SandboxActor;
  /** Told how many clients are connected whenever that changes. */
  readonly countChanged: (count: number) => void;
  readonly log: Logger;
}

/** Behind a proxy, the path of the public URL may still stand in front. */
const PATH = /^(?:\/[^?]*)?\/sandboxes\/([^/?]{1,64})\/connection\?token=([^&]+)$/u;

/** Answers to requests that do not become a WebSocket. */
const REFUSALS = {
  400: 'Bad Request',
  401: 'Unauthorized',
  403: 'Forbidden',
  404: 'Not Found',
  409: 'Conflict',
  429: 'Too Many Requests',
  503: 'Service Unavailable',
} as const;

function refuse(socket: Duplex, status: keyof typeof REFUSALS, message: string): void {
  const body = `${message}\n`;
  const head = [
    `HTTP/1.1 ${status} ${REFUSALS[status]}`,
    'Connection: close',
    'Content-Type: text/plain; charset=utf-8',
    `Content-Length: ${Buffer.byteLength(body)}`,
    ...(status === 503 ? ['Retry-After: 1'] : []),
  ];
  socket.end(`${head.join('\r\n')}\r\n\r\n${body}`, () => socket.destroy());
}

/**
 * Counts the clients that may be attached, and some more that are about to attach, kill or resize.
 */
const connectionsMax = ({ row }: SandboxActor): number =>
  row.config.maxConcurrentExecs + EDGE_LIMITS.unattachedConnectionsMax;

/** The process connections of the host's public server (docs/process-connections.md). */
export class ConnectionServer {
  readonly #options: ConnectionServerOptions;
  readonly #connections = new Set<ProcessConnection>();
  readonly #server = new WebSocketServer({
    noServer: true,
    clientTracking: false,
    perMessageDeflate: false,
    maxPayload: EDGE_LIMITS.clientMessageBytesMax,
  });
  readonly #timers: readonly NodeJS.Timeout[];
  #isClosed = false;

  constructor(options: ConnectionServerOptions) {
    this.#options = options;
    this.#timers = [
      setInterval(
        () => this.#each((connection) => connection.ping()),
        EDGE_LIMITS.connectionPingMs,
      ),
      setInterval(
        () => this.#each((connection) => connection.dropIfOver()),
        EDGE_LIMITS.connectionCheckMs,
      ),
    ];
    for (const timer of this.#timers) timer.unref();
  }

  /** Accepts clients on the host's public server. */
  serve(server: Server): void {
    server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
      // Node's server no longer listens on the socket: an unhandled reset would end this process.
      socket.on('error', () => socket.destroy());
      this.#upgrade(request, socket, head).catch((error: unknown) => {
        this.#options.log.error({ err: toError(error) }, 'session:upgradeFailed');
        socket.destroy();
      });
    });
  }

  /** Disconnects every client; their processes run on. */
  close(): void {
    this.#isClosed = true;
    for (const timer of this.#timers) clearInterval(timer);
    this.#each((connection) => connection.leave());
    this.#server.close();
  }

  async #upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const fault = findFramingFault(request, { mayUpgrade: true });
    if (fault !== undefined) return refuse(socket, 400, fault);
    const [, sandboxId, token] = PATH.exec(request.url ?? '') ?? [];
    if (sandboxId === undefined || token === undefined) {
      return refuse(socket, 400, 'this address upgrades connections of sandboxes only');
    }
    if (!allowsUpgrade(request, this.#options.allowedOrigins)) {
      return refuse(socket, 403, 'pages of this origin may not connect; see ALLOWED_ORIGINS');
    }
    if (this.#isClosed || !this.#options.keys.isReady) {
      return refuse(socket, 503, 'the host has just started, or stops; try again');
    }
    const claims = this.#options.keys.verify(token);
    if (claims === undefined || claims.sandboxId !== sandboxId) {
      return refuse(socket, 401, 'the token is not valid, or has expired; ask for another URL');
    }
    if (this.#connections.size >= EDGE_LIMITS.processConnectionsPerHostMax) {
      return refuse(socket, 503, 'the host has as many sessions as it can; try again');
    }
    try {
      const actor = this.#options.find(claims);
      if (this.#countOf(sandboxId) >= connectionsMax(actor)) {
        return refuse(socket, 429, 'the sandbox has as many connections as it may; close some');
      }
      await actor.connect();
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      const isGone = error.code === 'not_found';
      return refuse(socket, isGone ? 404 : error.code === 'no_capacity' ? 503 : 409, error.message);
    }
    this.#server.handleUpgrade(request, socket, head, (webSocket) => this.#add(webSocket, claims));
  }

  #add(socket: WebSocket, claims: ConnectionClaims): void {
    const { accountId, sandboxId, sessionEndsAt: endsAt } = claims;
    const { find, log } = this.#options;
    const connect = async (): ReturnType<SandboxActor['connect']> =>
      find({ accountId, sandboxId }).connect();
    const connection = new ProcessConnection(socket, { sandboxId, endsAt, connect, log });
    const { countChanged } = this.#options;
    this.#connections.add(connection);
    countChanged(this.#connections.size);
    socket.once('close', () => {
      this.#connections.delete(connection);
      countChanged(this.#connections.size);
    });
  }

  #countOf(sandboxId: string): number {
    return [...this.#connections].filter((connection) => connection.sandboxId === sandboxId).length;
  }

  #each(act: (connection: ProcessConnection) => void): void {
    for (const connection of this.#connections) act(connection);
  }
}
