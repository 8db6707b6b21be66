import type { PortRoute, SandboxRoutes } from '../../../shared/directory/sandbox-routes.ts';

type Read = Promise<PortRoute | undefined>;

interface Reads {
  /** Under way: too early for whoever arrives now. */
  current: Read;
  /** Begins when the current one has ended; undefined while nobody waits for it. */
  next: Read | undefined;
}

/**
 * Reads routes from the directory for requests. A request is judged only by a read that began after
 * it arrived, so whatever was revoked before counts; all that arrive during a read share the next.
 */
export class RouteReads {
  readonly #routes: Pick<SandboxRoutes, 'find'>;
  readonly #reads = new Map<string, Reads>();

  constructor(routes: Pick<SandboxRoutes, 'find'>) {
    this.#routes = routes;
  }

  find(routeId: string, port: number, token: string | undefined): Read {
    const key = token === undefined ? `${routeId} ${port}` : `${routeId} ${port} ${token}`;
    const begin = (): Read => this.#routes.find(routeId, port, token);
    const reads = this.#reads.get(key);
    if (reads !== undefined) return (reads.next ??= this.#follow(key, reads, begin));
    const first = { current: begin(), next: undefined };
    this.#reads.set(key, first);
    this.#forget(key, first);
    return first.current;
  }

  async #follow(key: string, reads: Reads, begin: () => Read): Read {
    await reads.current.catch(() => undefined);
    // The requests of this turn of the event loop still join.
    await new Promise((resolve) => setImmediate(resolve));
    reads.current = begin();
    reads.next = undefined;
    this.#forget(key, reads);
    return reads.current;
  }

  /** Forgets the reads of a key when one has ended and nobody waits for another. */
  #forget(key: string, reads: Reads): void {
    const { current } = reads;
    const settled = (): void => {
      if (reads.current === current && reads.next === undefined) this.#reads.delete(key);
    };
    current.then(settled, settled);
  }
}
