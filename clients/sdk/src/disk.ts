import { BerthError, ConnectionError } from './errors.ts';
import { DiskFiles } from './files/disk-files.ts';
import { serverEvents } from './files/server-events.ts';
import type { CallOptions, CreatingCallOptions, Http } from './http.ts';
import { Pages } from './pages.ts';
import type {
  BucketMount,
  CreatedDiskInfo,
  CreateDisk,
  CreateShareUrl,
  Delegation,
  DiskInfo,
  DiskUser,
  ExecResult,
  GrepMatch,
  GrepResult,
  MountCredentials,
  NewDiskUser,
  RunGrep,
  ShareUrl,
} from './types.ts';

/** @internal Commands are held until they end, at most 290 s. */
export const EXEC_POLICY = { retry: 'keyed', attemptMs: 300_000, timeoutMs: 330_000 } as const;
const GREP_POLICY = { retry: 'repeatable', attemptMs: 40_000 } as const;
/** A search ends after 28 s at most. */
const GREP_SILENCE_MS = 40_000;
const READ = { retry: 'repeatable' } as const;
const DELETION = { retry: 'repeatable', isDeletion: true } as const;

/** Options of {@link Disk.grep}. */
export interface GrepOptions extends CallOptions {
  readonly onMatches?: ((matches: GrepMatch[]) => void) | undefined;
}

/** A disk. `await using` deletes it at the end of the scope. */
export class Disk implements AsyncDisposable {
  /** Its files, without a command. */
  readonly files: DiskFiles;
  readonly #http: Http;
  #info: DiskInfo | CreatedDiskInfo;

  /** @internal */
  constructor(http: Http, info: DiskInfo | CreatedDiskInfo) {
    this.#http = http;
    this.#info = info;
    this.files = new DiskFiles(http, info.id);
  }

  get id(): string {
    return this.#info.id;
  }

  get name(): string {
    return this.#info.name;
  }

  /**
   * The disk's record as the API last returned it; after its creation with the tokens of its users.
   */
  get info(): DiskInfo | CreatedDiskInfo {
    return this.#info;
  }

  /** Asks the API anew. @throws NotFoundError */
  async refresh(options: CallOptions = {}): Promise<DiskInfo> {
    this.#info = await getDisk(this.#http, this.id, options);
    return this.#info;
  }

  /**
   * Runs a command by `bash -c` in the root of the disk, and waits for its end. Any exit code is a
   * result.
   * @throws DeadlineError, OutcomeUnknownError
   */
  async exec(command: string, options: CreatingCallOptions = {}): Promise<ExecResult> {
    const path = { id: this.id };
    const { data } = await this.#http.call(EXEC_POLICY, options, (client, init) =>
      client.POST('/api/disks/{id}/exec', { ...init, params: { path }, body: { command } }),
    );
    return data;
  }

  /**
   * Searches the files of a directory for an extended regular expression.
   * @param options `onMatches`: given matches as they are found. The search is then not repeated
   * when it fails after the first of them
   */
  async grep(search: RunGrep, options: GrepOptions = {}): Promise<GrepResult> {
    const { onMatches, ...call } = options;
    if (onMatches !== undefined) return this.#streamGrep(search, onMatches, call);
    const path = { id: this.id };
    const { data } = await this.#http.call(GREP_POLICY, call, (client, init) =>
      client.POST('/api/disks/{id}/grep', { ...init, params: { path }, body: search }),
    );
    return data;
  }

  async #streamGrep(
    search: RunGrep,
    onMatches: (matches: GrepMatch[]) => void,
    options: CallOptions,
  ): Promise<GrepResult> {
    const body = JSON.stringify(search);
    const answer = await this.#http.content(GREP_POLICY, options, {
      method: 'POST',
      path: `/api/disks/${this.id}/grep/stream`,
      headers: { 'content-type': 'application/json' },
      body: async () => body,
    });
    const matches: GrepMatch[] = [];
    for await (const { type, data } of serverEvents(answer, GREP_SILENCE_MS, options.signal)) {
      if (type === 'matches') {
        matches.push(...(data as GrepMatch[]));
        onMatches(data as GrepMatch[]);
      } else if (type === 'end') {
        return { ...(data as Omit<GrepResult, 'matches'>), matches };
      } else if (type === 'failed') {
        const { code, error } = data as { code: string; error: string };
        throw new BerthError(code, error);
      }
    }
    throw new ConnectionError('the search broke off');
  }

  /** Makes a link with which anybody can download one file for a limited time. */
  async share(file: CreateShareUrl, options: CreatingCallOptions = {}): Promise<ShareUrl> {
    const path = { id: this.id };
    const { data } = await this.#http.call({ retry: 'keyed' }, options, (client, init) =>
      client.POST('/api/disks/{id}/share', { ...init, params: { path }, body: file }),
    );
    return data;
  }

  /** Adds a user. Not repeated after a 503: the user may be there, and its token lost. */
  async addUser(user: NewDiskUser, options: CreatingCallOptions = {}): Promise<DiskUser> {
    const path = { id: this.id };
    const { data } = await this.#http.call({ retry: 'never' }, options, (client, init) =>
      client.POST('/api/disks/{id}/users', { ...init, params: { path }, body: user }),
    );
    return data;
  }

  /** Ends the access of a user at once. */
  async removeUser(
    { type, identifier }: Pick<DiskUser, 'type' | 'identifier'>,
    options: CallOptions = {},
  ): Promise<void> {
    const params = { path: { id: this.id, userType: type }, query: { identifier } };
    await this.#http.call({ retry: 'refused' }, options, (client, init) =>
      client.DELETE('/api/disks/{id}/users/{userType}', { ...init, params }),
    );
  }

  /** The addresses and blocks from which it may be mounted; empty: all. */
  async allowedIps(options: CallOptions = {}): Promise<string[]> {
    const path = { id: this.id };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/disks/{id}/allowed-ips', { ...init, params: { path } }),
    );
    return data.allowedIps;
  }

  /** Replaces them. @returns them in canonical form */
  async setAllowedIps(allowedIps: string[], options: CallOptions = {}): Promise<string[]> {
    const path = { id: this.id };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.PUT('/api/disks/{id}/allowed-ips', {
        ...init,
        params: { path },
        body: { allowedIps },
      }),
    );
    return data.allowedIps;
  }

  /** The origins whose pages may read objects and shared files in browsers; empty: none. */
  async allowedOrigins(options: CallOptions = {}): Promise<string[]> {
    const path = { id: this.id };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/disks/{id}/allowed-origins', { ...init, params: { path } }),
    );
    return data.allowedOrigins;
  }

  /** Replaces them. @returns them as they count now */
  async setAllowedOrigins(allowedOrigins: string[], options: CallOptions = {}): Promise<string[]> {
    const path = { id: this.id };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.PUT('/api/disks/{id}/allowed-origins', {
        ...init,
        params: { path },
        body: { allowedOrigins },
      }),
    );
    return data.allowedOrigins;
  }

  /**
   * Replaces the credentials of the object storage behind the disk.
   * @param mountId as `info.mounts` shows it
   * @returns the mount, with what came of trying them
   */
  async setMountCredentials(
    mountId: string,
    credentials: MountCredentials,
    options: CallOptions = {},
  ): Promise<BucketMount> {
    const params = { path: { id: this.id, mountId } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.POST('/api/disks/{id}/mounts/{mountId}/credentials', {
        ...init,
        params,
        body: credentials,
      }),
    );
    return data;
  }

  /** The checkouts that running commands hold or wait for. */
  async delegations(options: CallOptions = {}): Promise<Delegation[]> {
    const path = { id: this.id };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/disks/{id}/delegations', { ...init, params: { path } }),
    );
    return data.delegations;
  }

  /** Ends a checkout, and the command that holds it. */
  async revokeDelegation(
    { clientId, inodeId }: Pick<Delegation, 'clientId' | 'inodeId'>,
    options: CallOptions = {},
  ): Promise<void> {
    const path = { id: this.id };
    await this.#http.call({ retry: 'refused' }, options, (client, init) =>
      client.POST('/api/disks/{id}/revoke-delegation', {
        ...init,
        params: { path },
        body: { clientId, inodeId },
      }),
    );
  }

  /** Deletes it with everything on it. */
  async delete(options: CallOptions = {}): Promise<void> {
    const path = { id: this.id };
    await this.#http.call(DELETION, options, (client, init) =>
      client.DELETE('/api/disks/{id}', { ...init, params: { path } }),
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.delete();
  }
}

async function getDisk(http: Http, id: string, options: CallOptions): Promise<DiskInfo> {
  const { data } = await http.call(READ, options, (client, init) =>
    client.GET('/api/disks/{id}', { ...init, params: { path: { id } } }),
  );
  return data;
}

/** The disks of the account. */
export class Disks {
  readonly #http: Http;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
  }

  /** Creates a disk, or finds the one of that name and configuration. @throws ConflictError */
  async create(disk: CreateDisk, options: CreatingCallOptions = {}): Promise<Disk> {
    const { data } = await this.#http.call({ retry: 'keyed' }, options, (client, init) =>
      client.POST('/api/disks', { ...init, body: disk }),
    );
    return new Disk(this.#http, data);
  }

  /** @throws NotFoundError */
  async get(id: string, options: CallOptions = {}): Promise<Disk> {
    return new Disk(this.#http, await getDisk(this.#http, id, options));
  }

  /** The disk of this name, if there is one. */
  async find(name: string, options: CallOptions = {}): Promise<Disk | undefined> {
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/disks', { ...init, params: { query: { name } } }),
    );
    const [info] = data;
    return info === undefined ? undefined : new Disk(this.#http, info);
  }

  /** Oldest first. @param options `limit`: how many a page has, 1 to 100 */
  list({ limit = 100, ...options }: CallOptions & { readonly limit?: number } = {}): Pages<Disk> {
    return new Pages(async (cursor) => {
      const query = { limit, ...(cursor === undefined ? {} : { cursor }) };
      const { data, nextCursor } = await this.#http.call(READ, options, (client, init) =>
        client.GET('/api/disks', { ...init, params: { query } }),
      );
      return { items: data.map((info) => new Disk(this.#http, info)), nextCursor };
    });
  }
}
