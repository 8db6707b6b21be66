import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { addressKey, isProxy } from './address-key.ts';
import { StallClock, type TransferLimits } from './stall-clock.ts';

export interface ConnectionLimits {
  /** Connections at the same time, in total. */
  readonly max: number;
  /** Connections of one address at the same time; see `addressKey`. */
  readonly perAddressMax: number;
  /** Addresses and CIDR blocks to which `perAddressMax` does not apply. */
  readonly proxies: readonly string[];
  readonly transfers: TransferLimits;
}

/** Why a connection was ended or refused. */
export type ConnectionEnd = 'idle_dropped' | 'refused' | 'stalled' | 'not_accepted';

interface Connection {
  readonly socket: Socket;
  readonly party: Party;
  readonly exchanges: Map<IncomingMessage, ServerResponse>;
  clock: StallClock | undefined;
}

/** The connections of one address. */
interface Party {
  readonly key: string;
  count: number;
  readonly idle: Set<Connection>;
}

/**
 * Connections over the limit that are kept open to answer one request with 503; others are closed.
 */
const REFUSED_MAX = 64;
const REFUSED_MS = 2_000;

/**
 * Limits a server's connections, in total and per address. A new connection over a limit evicts the
 * connection that has been idle longest, among those of its address or among all; if every one of
 * them is serving a request, the new connection is refused. A connection is idle until the whole
 * head of a request has arrived, so a client that sends its head byte by byte is idle too.
 */
export class Connections {
  readonly #limits: ConnectionLimits;
  readonly #onEnd: (why: ConnectionEnd) => void;
  readonly #parties = new Map<string, Party>();
  readonly #connections = new Map<Socket, Connection>();
  /** In the order in which they became idle. */
  readonly #idle = new Set<Connection>();
  readonly #busy = new Set<Connection>();
  readonly #refused = new Set<Socket>();

  constructor(limits: ConnectionLimits, onEnd: (why: ConnectionEnd) => void) {
    this.#limits = limits;
    this.#onEnd = onEnd;
  }

  get count(): number {
    return this.#connections.size;
  }

  /** For each new connection, before anything is read from it. */
  add(socket: Socket): void {
    const { remoteAddress } = socket;
    if (remoteAddress === undefined) {
      socket.destroy(); // The peer has closed it already.
      return;
    }
    const party = this.#party(remoteAddress);
    if (!this.#makeRoom(party, remoteAddress)) return this.#refuse(socket);
    const connection = { socket, party, exchanges: new Map(), clock: undefined };
    party.count += 1;
    this.#parties.set(party.key, party);
    this.#connections.set(socket, connection);
    this.#rest(connection);
    socket.once('close', () => this.#forget(connection));
  }

  /** Records that a request's head has arrived. @returns false when the request must be refused */
  begin(request: IncomingMessage, response: ServerResponse): boolean {
    const connection = this.#connections.get(request.socket);
    if (connection === undefined) return false;
    connection.exchanges.set(request, response);
    connection.clock ??= new StallClock(request.socket, this.#limits.transfers);
    this.#idle.delete(connection);
    connection.party.idle.delete(connection);
    this.#busy.add(connection);
    response.once('close', () => {
      connection.exchanges.delete(request);
      if (connection.exchanges.size === 0) this.#rest(connection);
    });
    return true;
  }

  /** Exempts a connection that was upgraded from HTTP (a WebSocket) from eviction as idle. */
  keep(socket: Socket): void {
    const connection = this.#connections.get(socket);
    if (connection === undefined) return;
    this.#idle.delete(connection);
    connection.party.idle.delete(connection);
  }

  /**
   * Ends the connections whose peers transfer too slowly.
   * @param isCrowded other requests wait for their places, so peers get less time
   */
  dropStalled(isCrowded: boolean): void {
    for (const { socket, exchanges, clock } of this.#busy) {
      if (clock?.isStalled(exchanges.keys(), isCrowded) !== true) continue;
      this.#onEnd('stalled');
      socket.destroy();
    }
  }

  #party(address: string): Party {
    const key = addressKey(address);
    return this.#parties.get(key) ?? { key, count: 0, idle: new Set() };
  }

  #makeRoom(party: Party, address: string): boolean {
    const { max, perAddressMax, proxies } = this.#limits;
    if (party.count >= perAddressMax && !isProxy(proxies, address)) {
      return this.#dropIdle(party.idle);
    }
    return this.#connections.size < max || this.#dropIdle(this.#idle);
  }

  #dropIdle(among: ReadonlySet<Connection>): boolean {
    const [oldest] = among;
    if (oldest === undefined) return false;
    this.#forget(oldest);
    this.#onEnd('idle_dropped');
    oldest.socket.destroy();
    return true;
  }

  #rest(connection: Connection): void {
    const { socket, party } = connection;
    this.#busy.delete(connection);
    connection.clock = undefined;
    if (!this.#connections.has(socket)) return;
    this.#idle.add(connection);
    party.idle.add(connection);
  }

  #forget(connection: Connection): void {
    const { socket, party } = connection;
    if (!this.#connections.delete(socket)) return;
    this.#idle.delete(connection);
    this.#busy.delete(connection);
    party.idle.delete(connection);
    party.count -= 1;
    if (party.count === 0) this.#parties.delete(party.key);
  }

  #refuse(socket: Socket): void {
    this.#onEnd('refused');
    if (this.#refused.size >= REFUSED_MAX) {
      socket.destroy();
      return;
    }
    this.#refused.add(socket);
    const timer = setTimeout(() => socket.destroy(), REFUSED_MS);
    socket.once('close', () => {
      clearTimeout(timer);
      this.#refused.delete(socket);
    });
  }
}
