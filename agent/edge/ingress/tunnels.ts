import type { IncomingMessage, Server } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { toError } from '../../../shared/errors.ts';
import { findFramingFault } from '../../../shared/http/http-framing.ts';
import { signOnce, SingleUseTokens } from '../../../shared/links/single-use-token.ts';
import type { Logger } from '../../../shared/log.ts';
import { DoorError } from './door-error.ts';
import type { Door, DoorFault, PortRef } from './messages.ts';
import {
  faultHeader,
  PROOF_HEADER,
  readTunnelClaims,
  TUNNEL_PATH,
  TUNNEL_PURPOSE,
  TUNNEL_UPGRADE,
  tunnelClaims,
} from './tunnel-protocol.ts';
import type { Ring } from '../../../shared/secrets.ts';

/** The way to a port of another host's sandbox. */
export const tunnelTo = (
  clusterSecrets: Ring<string>,
  internalUrl: string,
  ref: PortRef,
  mayWake: boolean,
): Extract<Door, { kind: 'tunnel' }> => ({
  kind: 'tunnel',
  url: new URL(TUNNEL_PATH, internalUrl).href,
  headers: {
    connection: 'Upgrade',
    upgrade: TUNNEL_UPGRADE,
    [PROOF_HEADER]: signOnce(clusterSecrets, TUNNEL_PURPOSE, tunnelClaims(ref, mayWake)),
  },
});

export interface TunnelServerOptions {
  readonly hostId: string;
  readonly clusterSecrets: Ring<string>;
  /** @throws DoorError */
  readonly open: (ref: PortRef, mayWake: boolean) => Promise<Socket>;
  /** Keeps the sandbox from being idle. @returns ends that */
  readonly hold: (ref: PortRef) => () => void;
  readonly log: Logger;
}

/** The owner's end of tunnels, at its internal port. */
export class TunnelServer {
  readonly #options: TunnelServerOptions;
  readonly #tokens: SingleUseTokens;
  readonly #bySandbox = new Map<string, Set<Duplex>>();

  constructor(options: TunnelServerOptions) {
    this.#options = options;
    this.#tokens = new SingleUseTokens(options.clusterSecrets);
  }

  serve(server: Server): void {
    server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
      // Node's server no longer listens on the socket: an unhandled reset would end this process.
      socket.on('error', () => socket.destroy());
      this.#accept(request, socket, head).catch((error: unknown) => {
        this.#options.log.error({ err: toError(error) }, 'tunnel:failed');
        refuse(socket, 'unavailable');
      });
    });
  }

  /** The sandbox runs no longer. */
  drop(sandboxId: string): void {
    for (const socket of this.#bySandbox.get(sandboxId) ?? []) socket.destroy();
  }

  close(): void {
    for (const sandboxId of this.#bySandbox.keys()) this.drop(sandboxId);
  }

  async #accept(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const claims = this.#read(request);
    if (typeof claims === 'string') {
      this.#options.log.warn({ reason: claims }, 'tunnel:refused');
      return refuse(socket, 'unavailable', '400 Bad Request');
    }
    const { ref, mayWake } = claims;
    try {
      this.#join(ref, socket, await this.#options.open(ref, mayWake), head);
    } catch (error) {
      if (!(error instanceof DoorError)) throw error;
      refuse(socket, error.fault);
    }
  }

  #read(request: IncomingMessage): ReturnType<typeof readTunnelClaims> | string {
    const fault = findFramingFault(request, { mayUpgrade: true });
    if (fault !== undefined) return fault;
    const token = request.headers[PROOF_HEADER];
    if (request.url !== TUNNEL_PATH || request.headers.upgrade !== TUNNEL_UPGRADE)
      return 'no tunnel';
    if (typeof token !== 'string') return 'no token';
    const claims = this.#tokens.read(TUNNEL_PURPOSE, token);
    if (typeof claims === 'string') return claims;
    return claims['hostId'] === this.#options.hostId ? readTunnelClaims(claims) : 'another host';
  }

  #join(ref: PortRef, socket: Duplex, guest: Socket, head: Buffer): void {
    const { sandboxId } = ref;
    if (socket.destroyed) {
      guest.destroy();
      return;
    }
    const release = this.#options.hold(ref);
    const sockets = this.#bySandbox.get(sandboxId) ?? new Set();
    this.#bySandbox.set(sandboxId, sockets.add(socket));
    guest.setNoDelay(true);
    guest.on('error', () => socket.destroy());
    guest.once('close', () => {
      if (!socket.writableEnded) socket.destroy(); // Else what it sent before its end is to leave yet.
    });
    socket.once('close', () => {
      guest.destroy();
      release();
      sockets.delete(socket);
      if (sockets.size === 0) this.#bySandbox.delete(sandboxId);
    });
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ${TUNNEL_UPGRADE}\r\n\r\n`,
    );
    if (head.length > 0) guest.write(head);
    socket.pipe(guest).pipe(socket);
  }
}

function refuse(socket: Duplex, fault: DoorFault, status = '503 Service Unavailable'): void {
  const head = [`HTTP/1.1 ${status}`, 'Connection: close', faultHeader(fault), 'Content-Length: 0'];
  socket.end(`${head.join('\r\n')}\r\n\r\n`, () => socket.destroy());
}
