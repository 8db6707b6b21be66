import type { operations } from '../generated/api.ts';
import type { CallOptions, CallPolicy, Http } from '../http.ts';
import { Pages } from '../pages.ts';
import { LinkedSignal } from '../timing.ts';
import type { SandboxFile } from '../types.ts';
import { type FileContent, isRepeatable, toBody, type Upload } from './content.ts';
import { downloadHeaders, FileDownload, type FileRange, rangeHeader } from './download.ts';
import { encodePath, type FilePath, pathField } from './paths.ts';
import { FileWatch } from './watch.ts';
import type { FetchAnswer } from '../transport.ts';

type QueryOf<Id extends keyof operations> = NonNullable<operations[Id]['parameters']['query']>;
type Asked<Id extends keyof operations> = Omit<QueryOf<Id>, 'path' | 'cursor'>;

/** Options of {@link SandboxFiles.read}. */
export interface ReadFileOptions extends CallOptions, FileRange {
  /** `false` refuses a symbolic link at the end of the path. */
  readonly follow?: boolean | undefined;
  /** Fails with PreconditionError unless the file has this ETag. */
  readonly ifMatch?: string | undefined;
}

/** Options of {@link SandboxFiles.write}. `mode` is octal, as in `0640`. */
export interface WriteFileOptions extends CallOptions {
  /** Mode of the file. By default 0644 for a new file, and unchanged for an existing one. */
  readonly mode?: string | undefined;
  /** Numeric user and group. By default the default user's for a new file, else unchanged. */
  readonly uid?: number | undefined;
  readonly gid?: number | undefined;
  /** Create missing parent directories. */
  readonly parents?: boolean | undefined;
  /** `false` replaces a symbolic link at the end of the path, not the file it leads to. */
  readonly follow?: boolean | undefined;
  /** Resolve only once the file and its directory entry are synced to the sandbox's disk. */
  readonly sync?: boolean | undefined;
  /** Fails with PreconditionError unless the file has this ETag. */
  readonly ifMatch?: string | undefined;
  /** Fails with PreconditionError if anything exists at the path. */
  readonly ifAbsent?: boolean | undefined;
}

/** Options of {@link SandboxFiles.makeDirectory}. `mode` is octal, as in `0750`. */
export interface MakeDirectoryOptions extends CallOptions {
  /** 0755 by default. */
  readonly mode?: string | undefined;
  /** Numeric user and group; by default those of the default user. */
  readonly uid?: number | undefined;
  readonly gid?: number | undefined;
  /** Create missing parent directories, too; a directory that exists already is no error. */
  readonly parents?: boolean | undefined;
}

/** Options of {@link SandboxFiles.watch}. */
export interface WatchFilesOptions {
  /** Watch everything below the directory. */
  readonly recursive?: boolean | undefined;
  /** `false` refuses a symbolic link at the end of the path. */
  readonly follow?: boolean | undefined;
  /** Ends the watch; a loop over it then throws the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /**
   * How long the SDK tries to reconnect before the watch fails, in milliseconds; time during which
   * the sandbox is paused does not count. Default 10 minutes.
   */
  readonly reconnectMs?: number | undefined;
}

const RETRIES = 5;
/** The server waits 60 s for a file system that does not answer. */
const ATTEMPT_MS = 75_000;
const TIMEOUT_MS = 180_000;
const READ = { retry: 'repeatable', attemptMs: ATTEMPT_MS, timeoutMs: TIMEOUT_MS } as const;
/**
 * Not repeated after a lost answer: a second attempt would find the result of the first, and fail.
 */
const ONCE = { ...READ, retry: 'refused' } as const;
const TREE_MS_MAX = 3_600_000;

type Query = Readonly<Record<string, string | number | boolean | undefined>>;

const queryOf = (path: FilePath, more: Query): string =>
  Object.entries(more).reduce(
    (query, [name, value]) =>
      value === undefined ? query : `${query}&${name}=${encodeURIComponent(value)}`,
    `path=${encodePath(path)}`,
  );

/** Content as the generated client takes it, which knows no bodies but JSON. */
async function toUpload(content: FileContent, upload: Upload) {
  const body = await toBody(content, upload);
  return {
    body: '',
    bodySerializer: () => body,
    headers: { 'content-type': 'application/octet-stream' },
    // Streams must say so (https://fetch.spec.whatwg.org/#enumdef-requestduplex).
    duplex: 'half' as const,
  };
}

/**
 * Files of a running sandbox, without a shell in it. Paths are absolute; operations run as root of
 * the sandbox, and what is new belongs to its default user. docs/files.md says how they behave.
 *
 * @example
 * await sandbox.files.write('/work/notes.txt', 'hello', { parents: true });
 * const text = await sandbox.files.readText('/work/notes.txt');
 */
export class SandboxFiles {
  readonly #http: Http;
  readonly #sid: string;
  readonly #status: (signal: AbortSignal) => Promise<string>;

  /** @internal */
  constructor(http: Http, sandboxId: string, status: (signal: AbortSignal) => Promise<string>) {
    this.#http = http;
    this.#sid = sandboxId;
    this.#status = status;
  }

  /**
   * Opens a file of any size, or a part of it, to be read as it comes.
   * @throws NotFoundError; ConflictError `is_a_directory`, `not_a_file`; PreconditionError
   */
  async read(path: FilePath, options: ReadFileOptions = {}): Promise<FileDownload> {
    const { offset, length, follow, ifMatch, ...call } = options;
    const request = { method: 'GET', path: this.#url('', path, { follow }) } as const;
    const fetch = (range: string | undefined, etag: string | undefined): Promise<FetchAnswer> =>
      this.#http.content(READ, call, { ...request, headers: downloadHeaders(range, etag) });
    const response = await fetch(rangeHeader({ offset, length }), ifMatch);
    const { retries = RETRIES, signal } = call;
    return new FileDownload(response, fetch, { retries, signal });
  }

  /** Reads a whole file, or a range of it, into memory. @throws as {@link read} */
  async readBytes(path: FilePath, options: ReadFileOptions = {}): Promise<Uint8Array<ArrayBuffer>> {
    return (await this.read(path, options)).bytes();
  }

  /** Reads a file as UTF-8 text. @throws as {@link read} */
  async readText(path: FilePath, options: ReadFileOptions = {}): Promise<string> {
    return (await this.read(path, options)).text();
  }

  /**
   * Writes a file of any size. It appears in one step once all of it has arrived; until then, and
   * when the upload breaks, the old one stays. Repeated when its answer was lost, unless the
   * content is a stream (pass a function that opens it) or `ifMatch` or `ifAbsent` is given. No
   * time limit by default.
   *
   * @example
   * await sandbox.files.write('/data/big.tar', await openAsBlob('big.tar')); // of node:fs
   * await sandbox.files.write('/data/big.tar', () => createReadStream('big.tar'));
   * @throws PreconditionError; ConflictError `is_a_directory`, `no_space`
   */
  async write(
    path: FilePath,
    content: FileContent,
    options: WriteFileOptions = {},
  ): Promise<SandboxFile> {
    const { signal, timeoutMs, retries, ifMatch, ifAbsent = false, ...query } = options;
    const isConditional = ifMatch !== undefined || ifAbsent;
    const retry = !isRepeatable(content) ? 'never' : isConditional ? 'refused' : 'repeatable';
    const policy: CallPolicy = { retry, attemptMs: Infinity, timeoutMs: Infinity };
    const ended = new LinkedSignal(signal);
    const call = { timeoutMs, retries, signal: ended.signal };
    const conditions = {
      ...(ifMatch === undefined ? {} : { 'If-Match': ifMatch }),
      ...(ifAbsent ? { 'If-None-Match': '*' } : {}),
    };
    const params = { path: { sid: this.#sid }, query: { path: '' }, header: conditions };
    try {
      const { data } = await this.#http.call(policy, call, async (client, init) =>
        client.PUT('/api/sandboxes/{sid}/files', {
          ...{ ...init, params, querySerializer: () => queryOf(path, query) },
          ...(await toUpload(content, {
            signal: init.signal,
            failed: (error) => ended.abort(error),
          })),
        }),
      );
      return data;
    } finally {
      ended.release();
    }
  }

  /**
   * The file or directory at a path.
   * @param options `follow: false`: the link itself
   * @throws NotFoundError
   */
  async stat(
    path: FilePath,
    { follow, ...call }: CallOptions & Asked<'statSandboxFile'> = {},
  ): Promise<SandboxFile> {
    const querySerializer = (): string => queryOf(path, { follow });
    const params = { path: { sid: this.#sid }, query: { path: '' } };
    const { data } = await this.#http.call(READ, call, (client, init) =>
      client.GET('/api/sandboxes/{sid}/files/stat', { ...init, params, querySerializer }),
    );
    return data;
  }

  /**
   * Lists a directory, ordered by the bytes of the paths. Entries that exist throughout are listed
   * exactly once.
   * @param options `recursive`: everything below it; `limit`: entries per page, up to 5000
   */
  list(
    path: FilePath,
    { follow, recursive, limit, ...call }: CallOptions & Asked<'listSandboxFiles'> = {},
  ): Pages<SandboxFile> {
    return new Pages(async (cursor) => {
      const asked = { follow, recursive, limit, cursor };
      const querySerializer = (): string => queryOf(path, asked);
      const params = { path: { sid: this.#sid }, query: { path: '' } };
      const { data, nextCursor } = await this.#http.call(READ, call, (client, init) =>
        client.GET('/api/sandboxes/{sid}/files/list', { ...init, params, querySerializer }),
      );
      return { items: data.entries, nextCursor };
    });
  }

  /**
   * Creates a directory. @returns the directory as it is now
   * @throws ConflictError `file_exists`
   */
  async makeDirectory(path: FilePath, options: MakeDirectoryOptions = {}): Promise<SandboxFile> {
    const { signal, timeoutMs, retries, mode, uid, gid, parents = false } = options;
    const policy = parents ? READ : ONCE;
    const params = { path: { sid: this.#sid } };
    const owner = { ...(uid === undefined ? {} : { uid }), ...(gid === undefined ? {} : { gid }) };
    const body = {
      ...pathField('path', path),
      ...owner,
      ...(mode === undefined ? {} : { mode }),
      parents,
    };
    const { data } = await this.#http.call(policy, { signal, timeoutMs, retries }, (client, init) =>
      client.POST('/api/sandboxes/{sid}/files/directories', { ...init, params, body }),
    );
    return data;
  }

  /**
   * Moves or renames atomically, within one file system.
   * @param options `overwrite`: replace an existing target; a directory only if it is empty
   * @returns the moved file or directory
   * @throws ConflictError `file_exists`, `other_file_system`
   */
  async move(
    from: FilePath,
    to: FilePath,
    { overwrite = false, ...call }: CallOptions & { readonly overwrite?: boolean } = {},
  ): Promise<SandboxFile> {
    const params = { path: { sid: this.#sid } };
    const body = { ...pathField('from', from), ...pathField('to', to), overwrite };
    const { data } = await this.#http.call(ONCE, call, (client, init) =>
      client.POST('/api/sandboxes/{sid}/files/move', { ...init, params, body }),
    );
    return data;
  }

  /**
   * Removes a file, a link, or a directory.
   * @param options `recursive`: with everything in it; the time limit is then one hour by default
   * @throws NotFoundError; ConflictError `directory_not_empty`
   */
  async remove(
    path: FilePath,
    { recursive, ...call }: CallOptions & Asked<'removeSandboxFile'> = {},
  ): Promise<void> {
    const isTree = recursive === true;
    const limits = isTree ? { attemptMs: TREE_MS_MAX, timeoutMs: TREE_MS_MAX } : {};
    const policy = { ...READ, ...limits, isDeletion: true };
    const params = { path: { sid: this.#sid }, query: { path: '' } };
    const querySerializer = (): string => queryOf(path, { recursive });
    await this.#http.call(policy, call, (client, init) =>
      client.DELETE('/api/sandboxes/{sid}/files', { ...init, params, querySerializer }),
    );
  }

  /**
   * Watches a directory. Resolves once no later change is missed: list the directory after that.
   * @param options `recursive`: everything below it
   * @throws NotFoundError; ConflictError `not_a_directory`
   */
  watch(path: FilePath, options: WatchFilesOptions = {}): Promise<FileWatch> {
    const { signal, reconnectMs, ...asked } = options;
    const url = this.#url('/watch', path, asked);
    const host = {
      open: (until: AbortSignal) =>
        this.#http.content(READ, { signal: until }, { method: 'GET', path: url }),
      status: this.#status,
    };
    const shown = typeof path === 'string' ? path : new TextDecoder().decode(path);
    return FileWatch.open(host, { path: shown, reconnectMs, signal });
  }

  #url(operation: string, path: FilePath, query: Query): string {
    return `/api/sandboxes/${this.#sid}/files${operation}?${queryOf(path, query)}`;
  }
}
