import type { PortRoute, SandboxRoutes } from '../../shared/directory/sandbox-routes.ts';

type Read = Promise<PortRoute | undefined>;

/**
 * Reads routes from the directory for requests. A request is judged only by a read that began after
 * it arrived, so whatever was revoked before counts; those that arrive during a read share the next.
 */
export class RouteReads {
  readonly #routes: Pick<SandboxRoutes, 'find'>;
  readonly #next = new Map<string, Read>();

  constructor(routes: Pick<SandboxRoutes, 'find'>) {
    this.#routes = routes;
  }

  find(routeId: string, port: number, token: string | undefined): Read {
    const key = `${routeId} ${port} ${token ?? ''}`;
    let next = this.#next.get(key);
    if (next === undefined) {
      next = this.#begin(key, () => this.#routes.find(routeId, port, token));
      this.#next.set(key, next);
    }
    return next;
  }

  /** Begins once all that has arrived by now is in: the requests of one turn of the event loop. */
  async #begin(key: string, read: () => Read): Read {
    await new Promise((resolve) => setImmediate(resolve));
    this.#next.delete(key);
    return read();
  }
}
