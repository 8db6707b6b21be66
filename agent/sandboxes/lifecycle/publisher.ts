import { Backoff } from '../../../shared/backoff.ts';
import type { Sandboxes } from '../../../shared/directory/sandboxes.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import { settledWithin } from '../../../shared/settled-within.ts';

const BACKOFF_MS = { min: 100, max: 1_000 } as const;
/** How long an answer waits for the directory to show the state that it reports. */
const PUBLISHED_MS_MAX = 1_000;

/** Where records of one kind are published. */
export interface RecordDirectory<R> {
  publish(record: R): Promise<unknown>;
  remove(record: R): Promise<void>;
}

/**
 * Writes records of what this host owns to the directory, and retries until the newest ones are
 * there.
 */
export class Publisher<R extends { readonly id: string }> {
  readonly #directory: RecordDirectory<R>;
  readonly #log: Logger;
  /** The newest records that are not written yet, by id. */
  readonly #due = new Map<string, R>();
  readonly #writing = new Map<string, Promise<void>>();
  readonly #closed = new AbortController();

  constructor(directory: RecordDirectory<R>, log: Logger) {
    this.#directory = directory;
    this.#log = log;
  }

  /** Resolves when the directory has the record, or after a second while retries continue. */
  async publish(record: R): Promise<void> {
    this.#due.set(record.id, record);
    const writing = this.#writing.get(record.id) ?? this.#write(record.id);
    await settledWithin(writing, PUBLISHED_MS_MAX);
  }

  /** Resolves when the directory has what was published of an id, or after a second. */
  async published(id: string): Promise<void> {
    const writing = this.#writing.get(id);
    if (writing !== undefined) await settledWithin(writing, PUBLISHED_MS_MAX);
  }

  /**
   * Publishes a new record: resolves only when the directory has it, so that its creator can find
   * it.
   * @throws AppError `outcome_unknown` when the agent ends before the directory has it: what the
   *   record describes is there, and the next agent publishes it
   */
  async publishNew(record: R): Promise<void> {
    this.#due.set(record.id, record);
    await (this.#writing.get(record.id) ?? this.#write(record.id));
    if (!this.#closed.signal.aborted || !this.#due.has(record.id)) return;
    throw new AppError('outcome_unknown', 'the host shut down before callers could find it');
  }

  /** Resolves when the record is gone from the directory. @throws AppError when the agent ends */
  async remove(record: R): Promise<void> {
    this.#due.delete(record.id);
    await this.#writing.get(record.id);
    await this.#repeat(() => this.#directory.remove(record));
  }

  close(): void {
    this.#closed.abort();
  }

  #write(id: string): Promise<void> {
    const writing = (async () => {
      try {
        for (;;) {
          const record = this.#due.get(id);
          if (record === undefined) return;
          await this.#repeat(() => this.#directory.publish(this.#due.get(id) ?? record));
          if (this.#due.get(id) === record) this.#due.delete(id);
        }
      } catch (error) {
        this.#log.warn({ id, err: toError(error) }, 'record:publishFailed');
      } finally {
        this.#writing.delete(id);
      }
    })();
    this.#writing.set(id, writing);
    return writing;
  }

  async #repeat(write: () => Promise<unknown>): Promise<void> {
    const { signal } = this.#closed;
    const backoff = new Backoff(BACKOFF_MS);
    while (!signal.aborted) {
      try {
        await write();
        return;
      } catch (error) {
        this.#log.warn({ err: toError(error) }, 'directory:writeFailed');
        await backoff.pause({ signal });
      }
    }
    throw shuttingDown();
  }
}

/** Publishes this host's sandboxes. */
export class SandboxPublisher extends Publisher<SandboxRecord> {
  constructor(directory: Sandboxes, log: Logger) {
    const remove = ({ accountId, id, config, revision }: SandboxRecord): Promise<void> =>
      directory.remove({ accountId, sandboxId: id, name: config.name }, revision);
    super({ publish: (record) => directory.publish(record), remove }, log);
  }
}

const shuttingDown = (): AppError =>
  new AppError('unavailable', 'the host is shutting down; try again');
