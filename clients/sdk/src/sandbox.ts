import { BerthError } from './errors.ts';
import { SandboxFiles } from './files/sandbox-files.ts';
import type { CallOptions, CreatingCallOptions, Http } from './http.ts';
import { randomId } from './ids.ts';
import { type Input, Process, type ProcessResult, type StartOptions } from './process.ts';
import { SandboxExecs } from './sandbox-execs.ts';
import { SandboxNetwork } from './sandbox-network.ts';
import { Session, type SessionHost, type SessionOptions } from './session/session.ts';
import { Snapshot } from './snapshot.ts';
import type {
  CreateSandbox,
  ForkSandbox,
  SandboxInfo,
  SandboxProcess,
  SandboxTimeout,
  SandboxUsage,
  StartSandbox,
} from './types.ts';
import { poll, type WaitOptions } from './waiting.ts';

const READ = { retry: 'repeatable' } as const;
const MOVING: ReadonlySet<string> = new Set(['pending', 'pausing', 'stopping']);
/**
 * Until when a URL of a connection is used that came with the sandbox; the server's limit is a
 * minute.
 */
const GIVEN_URL_MS = 30_000;
const STOPPED: ReadonlySet<string> = new Set(['stopped', 'exited', 'failed']);
type Status = SandboxInfo['status'];

/** Options of creating a sandbox, besides its fields. */
export interface CreateSandboxOptions extends CreatingCallOptions {
  /** `false`: do not wait until it runs. */
  readonly wait?: boolean | undefined;
}

/** Options of {@link Sandbox.snapshot}. */
export interface SnapshotOptions extends CreateSandboxOptions {
  /** Runs in its sandboxes before they continue; that of the sandbox when omitted, empty: none. */
  copyHook?: string | undefined;
}

/** Options of {@link Sandbox.run}. */
export interface RunOptions extends StartOptions {
  /** All of its input. */
  readonly input?: Input | AsyncIterable<Input> | undefined;
}

/**
 * A persistent machine that can be paused, resumed and forked. `await using` stops and deletes it
 * at the end of the scope.
 */
export class Sandbox implements AsyncDisposable {
  /** Commands whose records the API keeps. */
  readonly execs: SandboxExecs;
  /** The sandbox's network policy and ports. */
  readonly network: SandboxNetwork;
  /** Its files, while it runs. */
  readonly files: SandboxFiles;
  readonly #http: Http;
  readonly #host: SessionHost;
  #info: SandboxInfo;
  #given: { readonly url: string; readonly until: number } | undefined;

  /** @internal @param given the URL of a connection that came with the record */
  constructor(http: Http, info: SandboxInfo, given?: string) {
    this.#http = http;
    this.#info = info;
    if (given !== undefined) this.#given = { url: given, until: performance.now() + GIVEN_URL_MS };
    this.execs = new SandboxExecs(http, info.sandbox_id);
    this.network = new SandboxNetwork(http, info.sandbox_id);
    const status = async (signal: AbortSignal): Promise<Status> =>
      (await getSandbox(http, info.sandbox_id, { signal })).status;
    this.files = new SandboxFiles(http, info.sandbox_id, status);
    this.#host = {
      status,
      url: (signal) => this.#connectionUrl(signal),
      open: (url) => http.openSocket(url),
    };
  }

  get id(): string {
    return this.#info.sandbox_id;
  }

  get name(): string {
    return this.#info.name;
  }

  /** The state that the API last reported; see {@link refresh}. */
  get status(): Status {
    return this.#info.status;
  }

  /** The sandbox's record as the API last returned it. */
  get info(): SandboxInfo {
    return this.#info;
  }

  /** Asks the API anew. @throws NotFoundError */
  async refresh(options: CallOptions = {}): Promise<SandboxInfo> {
    this.#info = await getSandbox(this.#http, this.id, options);
    return this.#info;
  }

  /** Current use of the host: processor time, memory, disk and network. */
  async metrics(options: CallOptions = {}): Promise<SandboxUsage> {
    const params = { path: { sid: this.id } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/sandboxes/{sid}/metrics', { ...init, params }),
    );
    return data;
  }

  /**
   * Waits until it rests in a state.
   * @throws BerthError `sandbox_failed` when that is another one than those wanted
   */
  async settled(wanted: readonly Status[], options: WaitOptions = {}): Promise<this> {
    const found = await poll(options, async (call) => {
      const { status } = MOVING.has(this.status) ? await this.refresh(call) : this.#info;
      return MOVING.has(status) ? undefined : status;
    });
    if (wanted.includes(found)) return this;
    const why = this.#info.exit_message ?? this.#info.exit_reason ?? 'no reason given';
    throw new BerthError('sandbox_failed', `the sandbox is ${found}: ${why}`);
  }

  /**
   * Starts a process, and resolves when it runs. It is started once, whatever happens on the way.
   * @throws SessionError `process_failed`; ConflictError `sandbox_not_running`
   */
  async start(command: string, options: StartOptions = {}): Promise<Process> {
    const { env, cwd, terminal, timeoutSeconds, ...session } = options;
    const fields = { env: env ?? {}, cwd, terminal, timeout_seconds: timeoutSeconds };
    return this.#hold({ id: randomId(), start: { command, ...fields } }, session);
  }

  /**
   * Attaches to a process that runs, or has ended within the last 15 minutes.
   * @param options `offset`: the first byte of output wanted; when it is not kept any more, output
   * begins at the oldest that is
   * @throws SessionError `process_not_found`
   */
  async attach(
    processId: string,
    { offset = 0, ...session }: SessionOptions & { readonly offset?: number } = {},
  ): Promise<Process> {
    return this.#hold({ id: processId, offset }, session);
  }

  /**
   * The processes that were started in sessions: those that run, and those that ended within the
   * last 15 minutes. {@link attach} takes their ids.
   * @throws ConflictError `sandbox_not_running`
   */
  async processes(options: CallOptions = {}): Promise<SandboxProcess[]> {
    const params = { path: { sid: this.id } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/sandboxes/{sid}/processes', { ...init, params }),
    );
    return data.processes;
  }

  /** Runs a command to its end. Any exit code is a result. @throws as {@link Process.exit} */
  async run(command: string, { input, ...options }: RunOptions = {}): Promise<ProcessResult> {
    const process = await this.start(command, options);
    const pieces = typeof input === 'string' || input instanceof Uint8Array ? [input] : input;
    const writing = process.writeAll(pieces ?? []).then(() => process.closeInput());
    const [result] = await Promise.all([process.result(), writing]);
    return result;
  }

  /** Boots it from its disk; the memory of a paused one is discarded. */
  async boot(body: StartSandbox = {}, options: WaitOptions = {}): Promise<this> {
    const params = { path: { sid: this.id }, query: { wait: true } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.POST('/api/sandboxes/{sid}/start', { ...init, params, body }),
    );
    return this.#moved(data, ['running'], options);
  }

  /** Continues from a pause: processes, memory and open files are as they were. */
  async resume(options: WaitOptions = {}): Promise<this> {
    return this.#act('resume', ['running'], options);
  }

  /** Keeps memory and processes, and gives memory and processors back. */
  async pause(options: WaitOptions = {}): Promise<this> {
    return this.#act('pause', ['paused'], options);
  }

  /** Shuts it down; the disk is kept. */
  async stop(options: WaitOptions = {}): Promise<this> {
    return this.#act('stop', ['stopped', 'exited', 'failed'], options);
  }

  /**
   * Copies it with disk, memory and processes, and waits until the copy runs. Programs that keep
   * random state in memory draw the same numbers in both; `copy_hook` is a command that runs in the
   * copy first.
   * @throws ConflictError; BerthError `sandbox_failed`
   */
  async fork(copy: ForkSandbox = {}, options: CreateSandboxOptions = {}): Promise<Sandbox> {
    const { wait = true, ...call } = options;
    const params = { path: { sid: this.id }, query: { wait } };
    const { data } = await this.#http.call({ retry: 'keyed' }, call, (client, init) =>
      client.POST('/api/sandboxes/{sid}/fork', { ...init, params, body: copy }),
    );
    const sandbox = new Sandbox(this.#http, data);
    return wait ? sandbox.settled(['running'], { signal: call.signal }) : sandbox;
  }

  /** Keeps its disk and memory under a name, and waits until that is done. */
  async snapshot(name: string, options: SnapshotOptions = {}): Promise<Snapshot> {
    const { wait = true, copyHook, ...call } = options;
    const hook = copyHook === undefined ? {} : { copy_hook: copyHook };
    const params = { path: { sid: this.id }, query: { wait } };
    const { data } = await this.#http.call({ retry: 'keyed' }, call, (client, init) =>
      client.POST('/api/sandboxes/{sid}/snapshots', { ...init, params, body: { name, ...hook } }),
    );
    const snapshot = new Snapshot(this.#http, data);
    return wait ? snapshot.ready({ signal: call.signal }) : snapshot;
  }

  /** Sets after how long it is paused. */
  async setTimeout(limits: SandboxTimeout, options: CallOptions = {}): Promise<SandboxInfo> {
    const params = { path: { sid: this.id } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.POST('/api/sandboxes/{sid}/timeout', { ...init, params, body: limits }),
    );
    this.#info = data;
    return data;
  }

  /**
   * Stops it if it runs, and deletes it with its disk.
   * @throws ConflictError `sandbox_has_forks`
   */
  async delete(options: WaitOptions = {}): Promise<void> {
    if (!STOPPED.has((await this.refresh(options)).status)) await this.stop(options);
    const params = { path: { sid: this.id } };
    await this.#http.call({ ...READ, isDeletion: true }, options, (client, init) =>
      client.DELETE('/api/sandboxes/{sid}', { ...init, params }),
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.delete();
  }

  async #hold(
    process: ConstructorParameters<typeof Session>[1],
    options: SessionOptions,
  ): Promise<Process> {
    const session = new Session(this.#host, process, options);
    await session.ready;
    return new Process(session, this.#host);
  }

  async #act(
    action: 'resume' | 'pause' | 'stop',
    wanted: readonly Status[],
    options: WaitOptions,
  ): Promise<this> {
    const params = { path: { sid: this.id }, query: { wait: true } };
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.POST(`/api/sandboxes/{sid}/${action}`, { ...init, params }),
    );
    return this.#moved(data, wanted, options);
  }

  #moved(info: SandboxInfo, wanted: readonly Status[], options: WaitOptions): Promise<this> {
    this.#info = info;
    return this.settled(wanted, options);
  }

  async #connectionUrl(signal: AbortSignal): Promise<string> {
    const given = this.#given;
    this.#given = undefined;
    if (given !== undefined && performance.now() < given.until) return given.url;
    const params = { path: { sid: this.id } };
    const { data } = await this.#http.call(READ, { signal }, (client, init) =>
      client.POST('/api/sandboxes/{sid}/connections', { ...init, params }),
    );
    return data.url;
  }
}

async function getSandbox(http: Http, id: string, options: CallOptions): Promise<SandboxInfo> {
  const { data } = await http.call(READ, options, (client, init) =>
    client.GET('/api/sandboxes/{sid}', { ...init, params: { path: { sid: id } } }),
  );
  return data;
}

/** The sandboxes of the account. */
export class Sandboxes {
  readonly #http: Http;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
  }

  /** Creates a sandbox, and waits until it runs. @throws BerthError `sandbox_failed` */
  async create(sandbox: CreateSandbox = {}, options: CreateSandboxOptions = {}): Promise<Sandbox> {
    const { wait = true, ...call } = options;
    const params = { query: { wait } };
    const { data } = await this.#http.call({ retry: 'keyed' }, call, (client, init) =>
      client.POST('/api/sandboxes', { ...init, params, body: sandbox }),
    );
    const created = new Sandbox(this.#http, data);
    return wait ? created.settled(['running'], { signal: call.signal }) : created;
  }

  /** @throws NotFoundError */
  async get(id: string, options: CallOptions = {}): Promise<Sandbox> {
    return new Sandbox(this.#http, await getSandbox(this.#http, id, options));
  }

  /** The sandbox of this name, if there is one. */
  async find(name: string, options: CallOptions = {}): Promise<Sandbox | undefined> {
    // A server of an older version does not know the filter, and lists all.
    return (await this.#list({ name }, options)).find((sandbox) => sandbox.name === name);
  }

  /**
   * The running sandbox of this name, with the way to its processes: the first that is started or
   * attached to within half a minute takes one request fewer than after {@link find}.
   * @throws NotFoundError; ConflictError `sandbox_not_running`
   */
  async connect(name: string, options: CallOptions = {}): Promise<Sandbox> {
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.POST('/api/sandboxes/connections', { ...init, body: { name } }),
    );
    return new Sandbox(this.#http, data.sandbox, data.url);
  }

  /** All of them, oldest first. @param options `filesystem`: only those that mount this disk */
  async list({
    filesystem,
    ...options
  }: CallOptions & { readonly filesystem?: string } = {}): Promise<Sandbox[]> {
    return this.#list(filesystem === undefined ? {} : { filesystem }, options);
  }

  async #list(
    query: { readonly filesystem?: string; readonly name?: string },
    options: CallOptions,
  ): Promise<Sandbox[]> {
    const { data } = await this.#http.call(READ, options, (client, init) =>
      client.GET('/api/sandboxes', { ...init, params: { query } }),
    );
    return data.sandboxes.map((info) => new Sandbox(this.#http, info));
  }
}
