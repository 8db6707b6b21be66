import { createServer, type Server as HttpServer, type IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { type SecureContext, TLSSocket } from 'node:tls';
import { runInBackground } from '../../../shared/background.ts';
import { STRICT_HTTP } from '../../../shared/http/strict-http.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { connectTo } from './connect.ts';
import { readConnectionStart } from './connection-start.ts';
import { runForConnection } from './connection-work.ts';
import type { SlotEgress } from './egress-settings.ts';
import type { Destination } from './find-route.ts';
import { forwardRequest } from './forward.ts';
import { handleUpgrade, isWebSocket } from './forward-upgrade.ts';
import type { GuestConnection } from './guest-connection.ts';
import { PROXY_LIMITS } from './limits.ts';
import { type HostParts, Slot } from './slot.ts';
import { joinSockets } from './tunnel.ts';

/** In the form of a ClientHello's list: `http/1.1` and nothing else. */
const ALPN = Buffer.from('\u0008http/1.1', 'latin1');

/** Where clients speak first, and say for which site: TLS and HTTP. */
const NAMED_PORTS: ReadonlySet<number> = new Set([80, 443]);

/** Judges the connections of all slots, told apart by the addresses that they come from. */
export class EgressServer {
  readonly #slots = new Map<string, Slot>();
  /** By the addresses that their questions for names come from. */
  readonly #askers = new Map<string, Slot>();
  readonly #http: HttpServer;
  /**
   * By socket, the guest's connection that speaks HTTP on it; of brokered TLS, the decrypted
   * socket.
   */
  readonly #connections = new WeakMap<Socket, GuestConnection>();
  #parts: HostParts;
  #openCount = 0;

  constructor(parts: HostParts) {
    this.#parts = parts;
    this.#http = this.#createHttpServer();
  }

  /** For connections from now on; follow it with {@link setSlot} of each slot. */
  setHost(parts: HostParts): void {
    this.#parts = parts;
  }

  setSlot(address: string, egress: SlotEgress): void {
    const known = this.#slots.get(address);
    const slot = known ?? new Slot(egress, this.#parts);
    known?.update(egress, this.#parts);
    this.#slots.set(address, slot);
    this.#askers.set(egress.asksFrom, slot);
  }

  /** Ends all connections of the slot. */
  removeSlot(address: string): void {
    const slot = this.#slots.get(address);
    if (slot === undefined) return;
    slot.close();
    this.#slots.delete(address);
    this.#askers.delete(slot.asksFrom);
  }

  slot(address: string): Slot | undefined {
    return this.#slots.get(address);
  }

  /** The slot whose questions for names come from this address. */
  slotAsking(address: string): Slot | undefined {
    return this.#askers.get(address);
  }

  get slots(): string[] {
    return [...this.#slots.keys()];
  }

  /**
   * Takes a connection that was redirected here: its local address is where the guest connected to.
   */
  accept(socket: Socket): void {
    const slot = this.#slots.get(socket.remoteAddress ?? '');
    socket.on('error', () => socket.destroy());
    if (slot === undefined || !this.#mayConnect(slot)) {
      socket.resetAndDestroy();
      return;
    }
    this.#openCount += 1;
    slot.connections.add(socket);
    socket.once('close', () => {
      this.#openCount -= 1;
      slot.connections.delete(socket);
    });
    runInBackground('egress.serve', async () => {
      try {
        await this.#serve(slot, socket);
      } catch {
        // The guest or the server is slow, has hung up or cannot be reached; the guest sees a
        // reset.
        socket.resetAndDestroy();
      }
    });
  }

  /**
   * A slot has at most as many connections as are free, so that there are always some for the next.
   */
  #mayConnect({ connections }: Slot): boolean {
    const free = PROXY_LIMITS.connectionsMax - this.#openCount;
    return connections.size < Math.min(PROXY_LIMITS.connectionsPerSlotMax, free);
  }

  async #serve(slot: Slot, socket: Socket): Promise<void> {
    const { localAddress: address, localPort: port } = socket;
    if (address === undefined || port === undefined) throw new Error('the client has gone');
    const start = await readConnectionStart(socket, slot.firstByteMs);
    if (start.kind === 'http') {
      return this.#serveHttp(socket, {
        slot,
        address,
        port,
        tlsName: undefined,
        exchanges: new SerialQueue(),
      });
    }
    const name = start.kind === 'tls' ? start.name : undefined;
    const hides = start.kind === 'tls' ? 'name' : 'everything';
    const mustShow = name === undefined && NAMED_PORTS.has(port);
    const destination = { name, address, hides: mustShow ? hides : undefined } as const;
    const { brokering } = await slot.judge(destination);
    if (brokering !== undefined && name !== undefined && slot.leaves !== undefined) {
      const context = await slot.leaves.contextFor(name);
      return this.#endTls(socket, context, {
        slot,
        address,
        port,
        tlsName: name,
        exchanges: new SerialQueue(),
      });
    }
    await pass(slot, socket, destination, port);
  }

  #serveHttp(socket: Socket, connection: GuestConnection): void {
    this.#connections.set(socket, connection);
    this.#http.emit('connection', socket);
  }

  /** Continues as the server that the guest called; requests are judged one by one. */
  #endTls(socket: Socket, secureContext: SecureContext, connection: GuestConnection): void {
    const inner = new TLSSocket(socket, { isServer: true, secureContext, ALPNProtocols: ALPN });
    const timer = setTimeout(() => inner.destroy(), PROXY_LIMITS.handshakeMs);
    inner.on('error', () => inner.destroy());
    inner.once('close', () => {
      clearTimeout(timer);
      socket.destroy();
    });
    inner.once('secure', () => {
      clearTimeout(timer);
      this.#serveHttp(inner, connection);
    });
  }

  #createHttpServer(): HttpServer {
    const server = createServer({
      ...STRICT_HTTP,
      maxHeaderSize: PROXY_LIMITS.headerBytesMax,
      headersTimeout: PROXY_LIMITS.headMs,
      requestTimeout: 0, // Transfers may be long; those that stand still end.
      connectionsCheckingInterval: PROXY_LIMITS.headMs / 4,
      keepAliveTimeout: PROXY_LIMITS.keepAliveMs,
      shouldUpgradeCallback: isWebSocket,
    });
    server.maxHeadersCount = 0; // Their total size is limited; see serveStrictly.
    const handle =
      (isContinueAwaited: boolean) =>
      (request: IncomingMessage, response: Parameters<typeof forwardRequest>[0]['response']) => {
        const connection = this.#connections.get(request.socket);
        // A guest that sends more requests without waiting for answers would fill memory.
        if (connection === undefined || connection.exchanges.length >= PROXY_LIMITS.pipelinedMax) {
          request.socket.destroy();
          return;
        }
        const exchange = { connection, request, response, isContinueAwaited };
        // The proxy answers requests in turn, because it closes the connection after a refusal.
        const { exchanges } = connection;
        const end = (): unknown => request.socket.destroy();
        runForConnection('egress.forward', end, () =>
          exchanges.add(() => forwardRequest(exchange)),
        );
      };
    server.on('request', handle(false));
    server.on('checkContinue', handle(true));
    server.on('upgrade', (request, socket, head) => {
      const connection = this.#connections.get(request.socket);
      if (connection === undefined) socket.destroy();
      else handleUpgrade(connection, request, socket, head);
    });
    // This server never listens itself, but checks the time of heads from now on.
    server.emit('listening');
    return server;
  }
}

/** Passes a connection on as it is, if the policy allows it. */
async function pass(
  slot: Slot,
  socket: Socket,
  destination: Destination,
  port: number,
): Promise<void> {
  const { addresses } = await slot.route(destination, port);
  if (addresses.length === 0) {
    socket.resetAndDestroy();
    return;
  }
  const server = await connectTo(addresses, port);
  if (socket.destroyed) {
    server.destroy();
    return;
  }
  const host = destination.name ?? destination.address;
  const onEnd = slot.flights.beginTunnel(host, socket, server);
  joinSockets(socket, server, { onEnd });
}
