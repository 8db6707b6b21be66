import type { CallOptions, Http } from './http.ts';
import type { HostInfo } from './types.ts';

/** Each order may be given again. */
const REPEATABLE = { retry: 'repeatable' } as const;

/** The hosts that everything runs on: for operators, whose keys have the scope `operator`. */
export class Hosts {
  readonly #http: Http;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
  }

  /** All hosts of the region, those that are away included. */
  async list(options: CallOptions = {}): Promise<HostInfo[]> {
    const { data } = await this.#http.call(REPEATABLE, options, (client, init) =>
      client.GET('/api/hosts', { ...init }),
    );
    return data;
  }

  /** @throws NotFoundError */
  async get(id: string, options: CallOptions = {}): Promise<HostInfo> {
    const { data } = await this.#http.call(REPEATABLE, options, (client, init) =>
      client.GET('/api/hosts/{id}', { ...init, params: { path: { id } } }),
    );
    return data;
  }

  /** Lets it take nothing new; its sandboxes go on. @throws NotFoundError */
  async cordon(id: string, options: CallOptions = {}): Promise<HostInfo> {
    const { data } = await this.#http.call(REPEATABLE, options, (client, init) =>
      client.POST('/api/hosts/{id}/cordon', { ...init, params: { path: { id } } }),
    );
    return data;
  }

  /** Ends `cordon` and `drain`; paused sandboxes stay paused. @throws NotFoundError */
  async uncordon(id: string, options: CallOptions = {}): Promise<HostInfo> {
    const { data } = await this.#http.call(REPEATABLE, options, (client, init) =>
      client.POST('/api/hosts/{id}/uncordon', { ...init, params: { path: { id } } }),
    );
    return data;
  }

  /**
   * Begins to pause its sandboxes and to take its disks from it: that is over when its state is
   * `drained`.
   * @throws NotFoundError
   */
  async drain(id: string, options: CallOptions = {}): Promise<HostInfo> {
    const { data } = await this.#http.call(REPEATABLE, options, (client, init) =>
      client.POST('/api/hosts/{id}/drain', { ...init, params: { path: { id } } }),
    );
    return data;
  }

  /**
   * Says that a host which is away is off, so that others take its sandboxes over.
   * @throws ConflictError unless it is away
   */
  async fence(id: string, options: CallOptions = {}): Promise<HostInfo> {
    const { data } = await this.#http.call(REPEATABLE, options, (client, init) =>
      client.POST('/api/hosts/{id}/fence', { ...init, params: { path: { id } } }),
    );
    return data;
  }

  /**
   * Removes a host that is away and will not come back. Its machine must be off.
   * @throws ConflictError unless it is away
   */
  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.#http.call({ ...REPEATABLE, isDeletion: true }, options, (client, init) =>
      client.DELETE('/api/hosts/{id}', { ...init, params: { path: { id } } }),
    );
  }
}
