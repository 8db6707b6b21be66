import { BerthError } from './errors.ts';
import type { CallOptions, Http } from './http.ts';
import { Pages } from './pages.ts';
import type { SnapshotInfo } from './types.ts';
import { poll, type WaitOptions } from './waiting.ts';

const READ = { retry: 'repeatable' } as const;

/**
 * Disk and memory of a sandbox, kept to create others from. `await using` deletes it at the end of
 * the scope.
 */
export class Snapshot implements AsyncDisposable {
  readonly #http: Http;
  #info: SnapshotInfo;

  /** @internal */
  constructor(http: Http, info: SnapshotInfo) {
    this.#http = http;
    this.#info = info;
  }

  get id(): string {
    return this.#info.snapshot_id;
  }

  get name(): string {
    return this.#info.name;
  }

  /** The snapshot's record as the API last returned it. */
  get info(): SnapshotInfo {
    return this.#info;
  }

  /** Asks the API anew. @throws NotFoundError */
  async refresh(options: CallOptions = {}): Promise<SnapshotInfo> {
    this.#info = await getSnapshot(this.#http, this.id, options);
    return this.#info;
  }

  /** Waits until it is made. @throws BerthError `snapshot_failed` */
  async ready(options: WaitOptions = {}): Promise<this> {
    return poll(options, async (call) => {
      const { status, failure_reason: reason } =
        this.#info.status === 'creating' ? await this.refresh(call) : this.#info;
      if (status === 'failed') throw new BerthError('snapshot_failed', reason ?? 'it has failed');
      return status === 'ready' ? this : undefined;
    });
  }

  /** @throws ConflictError `snapshot_in_use` while sandboxes stand on it */
  async delete(options: CallOptions = {}): Promise<void> {
    const params = { path: { id: this.id } };
    await this.#http.call({ ...READ, isDeletion: true }, options, (client, init) =>
      client.DELETE('/api/snapshots/{id}', { ...init, params }),
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.delete();
  }
}

async function getSnapshot(http: Http, id: string, options: CallOptions): Promise<SnapshotInfo> {
  const { data } = await http.call(READ, options, (client, init) =>
    client.GET('/api/snapshots/{id}', { ...init, params: { path: { id } } }),
  );
  return data;
}

/** The snapshots of the account. */
export class Snapshots {
  readonly #http: Http;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
  }

  /** @param id or name. @throws NotFoundError */
  async get(id: string, options: CallOptions = {}): Promise<Snapshot> {
    return new Snapshot(this.#http, await getSnapshot(this.#http, id, options));
  }

  /** Oldest first. @param options `limit`: how many a page has, 1 to 100 */
  list({
    limit = 100,
    ...options
  }: CallOptions & { readonly limit?: number } = {}): Pages<Snapshot> {
    return new Pages(async (cursor) => {
      const query = { limit, ...(cursor === undefined ? {} : { cursor }) };
      const { data, nextCursor } = await this.#http.call(READ, options, (client, init) =>
        client.GET('/api/snapshots', { ...init, params: { query } }),
      );
      return { items: data.map((info) => new Snapshot(this.#http, info)), nextCursor };
    });
  }
}
