import {
  BerthError,
  CallTimeoutError,
  ConnectionError,
  DeadlineError,
  RateLimitError,
  UnavailableError,
  WatchEndedError,
} from '../errors.ts';
import { backoffMs, LinkedSignal, reasonOf, sleep } from '../timing.ts';
import { serverEvents } from './server-events.ts';
import type { FetchAnswer } from '../transport.ts';

/** A change of a file or directory. */
export interface FileChange {
  /**
   * `created`: also what was moved there. `modified`: its content. `attributes`: mode, owner or
   * times. `removed`: also what was moved away. `overflow`: changes may be missing, so list the
   * directory anew; `path` is the one that is watched.
   */
  readonly type: 'created' | 'modified' | 'attributes' | 'removed' | 'overflow';
  readonly path: string;
  /** When the path is not UTF-8; see `decodePath`. */
  readonly path_encoded?: string;
  readonly directory?: boolean;
}

/** @internal How a watch reaches its sandbox. */
export interface WatchHost {
  open(signal: AbortSignal): Promise<FetchAnswer>;
  status(signal: AbortSignal): Promise<string>;
}

interface WatchSettings {
  /** Told with `overflow`. */
  readonly path: string;
  readonly reconnectMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

interface WatchEvent {
  readonly type: FileChange['type'] | 'ready' | 'end';
  readonly path: string;
  readonly code?: string;
  readonly error?: string;
}

/** The server says something every 15 s. */
const SILENCE_MS_MAX = 60_000;
const RECONNECT_MS = 600_000;
const BACKOFF_FIRST_MS = 100;
const BACKOFF_MAX_MS = 3_000;
const PAUSED_POLL_MS = 1_000;
const STANDING: ReadonlySet<string> = new Set(['pending', 'pausing', 'paused']);
/** Ends of a watch that pass. */
const PASSING: ReadonlySet<string> = new Set(['unavailable', 'no_capacity', 'timeout']);

type Events = AsyncGenerator<WatchEvent, void, undefined>;

/** @throws ConnectionError when it breaks, WatchEndedError */
async function* eventsOf(response: FetchAnswer, signal: AbortSignal): Events {
  for await (const { type, data } of serverEvents(response, SILENCE_MS_MAX, signal)) {
    const event = { ...(data as object), type } as WatchEvent;
    if (event.type === 'end') {
      throw new WatchEndedError(event.code ?? 'unknown', event.error ?? 'the watch has ended');
    }
    yield event;
  }
  throw new ConnectionError('the watch broke off');
}

/**
 * Changes in a directory, from the moment on at which `watch` has resolved. It survives broken
 * connections, restarts of the server and pauses of the sandbox: `overflow` then tells that changes
 * may be missing. Read it all the time; a reader that falls far behind is told `overflow`, too.
 *
 * @example
 * await using changes = await sandbox.files.watch('/src', { recursive: true });
 * for await (const { type, path } of changes) console.log(type, path);
 */
export class FileWatch implements AsyncIterable<FileChange>, AsyncDisposable {
  readonly #host: WatchHost;
  readonly #path: string;
  readonly #reconnectMs: number;
  readonly #left: LinkedSignal;
  #isClosed = false;
  #events: Events | undefined;

  private constructor(
    host: WatchHost,
    { path, reconnectMs = RECONNECT_MS, signal }: WatchSettings,
  ) {
    this.#host = host;
    this.#path = path;
    this.#reconnectMs = reconnectMs;
    this.#left = new LinkedSignal(signal);
  }

  /** @internal */
  static async open(host: WatchHost, settings: WatchSettings): Promise<FileWatch> {
    const watch = new FileWatch(host, settings);
    watch.#events = await watch.#connect();
    return watch;
  }

  /**
   * The changes, until the loop or the watch is left.
   * @throws WatchEndedError when the directory is gone; ConflictError or WatchEndedError
   * `sandbox_not_running` when the sandbox was stopped; ConnectionError
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<FileChange, void, undefined> {
    try {
      for (;;) {
        try {
          yield* this.#changes();
        } catch (error) {
          this.#events = await this.#reconnect(error as Error);
          yield { type: 'overflow', path: this.#path };
        }
      }
    } catch (error) {
      if (!this.#isClosed) throw error;
    } finally {
      this.close();
    }
  }

  /** Ends the watch, and a loop that reads it. */
  close(): void {
    this.#isClosed = true;
    this.#left.release();
    this.#left.abort(new BerthError('closed', 'the watch was closed'));
    this.#events?.return().catch(() => undefined); // Its request has been aborted.
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  get #signal(): AbortSignal {
    return this.#left.signal;
  }

  async *#changes(): AsyncGenerator<FileChange, void, undefined> {
    this.#signal.throwIfAborted();
    for await (const { type, ...change } of this.#events ?? []) {
      if (type !== 'ready' && type !== 'end') yield { type, ...change };
    }
    throw new ConnectionError('the watch broke off');
  }

  /** Resolves when nothing is missed from then on. */
  async #connect(): Promise<Events> {
    const events = eventsOf(await this.#host.open(this.#signal), this.#signal);
    await events.next(); // `ready`
    return events;
  }

  /** @throws the error, or a later one, when trying again would not help */
  async #reconnect(cause: Error): Promise<Events> {
    let error = cause;
    let failures = 0;
    for (let since = performance.now(); ; failures += 1) {
      if (this.#signal.aborted) throw reasonOf(this.#signal);
      const isStanding = isOfState(error) && (await this.#isStanding(error));
      if (isStanding) since = performance.now();
      else if (!mayPass(error) || performance.now() - since > this.#reconnectMs) throw error;
      const delayMs = isStanding
        ? PAUSED_POLL_MS
        : backoffMs(failures, BACKOFF_FIRST_MS, BACKOFF_MAX_MS);
      await sleep(delayMs, this.#signal);
      try {
        return await this.#connect();
      } catch (failure) {
        error = failure as Error;
      }
    }
  }

  /**
   * Whether the sandbox will run again by itself or at a resume.
   * @throws the error, if it is stopped
   */
  async #isStanding(error: Error): Promise<boolean> {
    try {
      const status = await this.#host.status(this.#signal);
      if (status !== 'running' && !STANDING.has(status)) throw error;
      return STANDING.has(status);
    } catch (failure) {
      if (failure instanceof ConnectionError) return false;
      throw failure;
    }
  }
}

/** Whether the sandbox, as it is now, has no files to watch. */
const isOfState = (error: Error): boolean =>
  error instanceof BerthError && error.code === 'sandbox_not_running';

function mayPass(error: Error): boolean {
  if (error instanceof WatchEndedError) return PASSING.has(error.code) || isOfState(error);
  const passes = [
    ConnectionError,
    CallTimeoutError,
    RateLimitError,
    UnavailableError,
    DeadlineError,
  ];
  return passes.some((kind) => error instanceof kind) || isOfState(error);
}
