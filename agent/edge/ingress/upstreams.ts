import { type Dispatcher, Pool } from 'undici';
import { runInBackground } from '../../../shared/background.ts';
import { EDGE_LIMITS } from '../limits.ts';
import { LIMITS } from '../../../shared/limits.ts';
import type { Doors } from './doors.ts';
import type { PortRef } from './messages.ts';

interface Upstream {
  readonly pool: Pool;
  usedAt: number;
}

const SWEEP_EVERY_MS = 30_000;
/**
 * A tunnel holds the sandbox for as long as it is open, so it is kept only for the next request.
 */
const TUNNEL_KEPT_MS = 1_000;
/** Short: a server that serves one connection at a time serves nobody else until it ends. */
const CONNECTION_KEPT_MS = 5_000;
const POOL_KEPT_MS = 60_000;
/** Which name the URL has does not matter: each request brings its own Host header. */
const ORIGIN = 'http://sandbox';

/** The connections to ports of sandboxes that are kept for further requests. */
export class Upstreams {
  readonly #doors: Doors;
  readonly #hostId: string;
  readonly #bySandbox = new Map<string, Map<number, Upstream>>();
  /** Pools by sandbox that get no further requests, until those in progress have ended. */
  readonly #retired = new Map<string, Set<Pool>>();
  readonly #timer: NodeJS.Timeout;

  constructor(doors: Doors, { hostId }: { readonly hostId: string }) {
    this.#doors = doors;
    this.#hostId = hostId;
    this.#timer = setInterval(() => this.#sweep(), SWEEP_EVERY_MS);
    this.#timer.unref();
  }

  /** The connections to one port. */
  of(ref: PortRef): Dispatcher {
    const { sandboxId, port } = ref;
    let ports = this.#bySandbox.get(sandboxId);
    if (ports === undefined) {
      ports = new Map<number, Upstream>();
      this.#bySandbox.set(sandboxId, ports);
    }
    let upstream = ports.get(port);
    if (upstream === undefined) {
      upstream = { pool: this.#open(ref), usedAt: 0 };
      ports.set(port, upstream);
    }
    upstream.usedAt = performance.now();
    return upstream.pool;
  }

  /** Drops all connections to a sandbox, which runs no longer. */
  drop(sandboxId: string): void {
    const ports = this.#bySandbox.get(sandboxId);
    this.#bySandbox.delete(sandboxId);
    for (const { pool } of ports?.values() ?? []) destroy(pool);
    for (const pool of this.#retired.get(sandboxId) ?? []) destroy(pool);
  }

  /**
   * Keeps no present connection to a port for further requests: idle ones end now, the others with
   * their answer. To be called when a connection may wait for its turn at the guest's server.
   */
  retire({ sandboxId, port }: Pick<PortRef, 'sandboxId' | 'port'>): void {
    const ports = this.#bySandbox.get(sandboxId);
    const pool = ports?.get(port)?.pool;
    if (pool === undefined) return;
    ports?.delete(port);
    const retired = this.#retired.get(sandboxId) ?? new Set();
    this.#retired.set(sandboxId, retired.add(pool));
    runInBackground('ingress.retire', async () => {
      await pool.close().catch(() => undefined);
      retired.delete(pool);
      if (retired.size === 0 && this.#retired.get(sandboxId) === retired)
        this.#retired.delete(sandboxId);
    });
  }

  close(): void {
    clearInterval(this.#timer);
    for (const sandboxId of [...this.#bySandbox.keys(), ...this.#retired.keys()])
      this.drop(sandboxId);
  }

  #open(ref: PortRef): Pool {
    return new Pool(ORIGIN, {
      connections: EDGE_LIMITS.ingressConnectionsPerPortMax,
      pipelining: 1,
      headersTimeout: 0, // Requests have time limits of their own.
      bodyTimeout: 0, // Events may be far apart.
      keepAliveTimeout: ref.hostId === this.#hostId ? CONNECTION_KEPT_MS : TUNNEL_KEPT_MS,
      keepAliveMaxTimeout: CONNECTION_KEPT_MS,
      maxHeaderSize: LIMITS.internalHeaderBytesMax,
      connect: (_options, callback) => {
        this.#doors.open(ref, true).then(
          (socket) => callback(null, socket),
          (error: unknown) => callback(error as Error, null),
        );
      },
    });
  }

  #sweep(): void {
    const now = performance.now();
    for (const [sandboxId, ports] of this.#bySandbox) {
      for (const [port, { pool, usedAt }] of ports) {
        const { running, pending, size } = pool.stats;
        const isIdle = running + pending + size === 0 && now - usedAt > POOL_KEPT_MS;
        if (!isIdle) continue;
        ports.delete(port);
        destroy(pool);
      }
      if (ports.size === 0) this.#bySandbox.delete(sandboxId);
    }
  }
}

const destroy = (pool: Pool): void => {
  pool.destroy().catch(() => undefined);
};
