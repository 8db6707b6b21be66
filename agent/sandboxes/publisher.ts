import { Backoff } from '../../shared/backoff.ts';
import type { Sandboxes } from '../../shared/directory/sandboxes.ts';
import { AppError, toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';
import type { SandboxRecord } from '../../shared/schemas/sandbox-record.ts';
import { settledWithin } from '../../shared/settled-within.ts';

const BACKOFF_MS = { min: 100, max: 1_000 } as const;
/** How long an answer waits for the directory to show the state that it reports. */
const PUBLISHED_MS_MAX = 1_000;

/**
 * Writes this host's sandboxes to the directory, and retries until their newest records are there.
 */
export class SandboxPublisher {
  readonly #directory: Sandboxes;
  readonly #log: Logger;
  /** The newest records that are not written yet, by sandbox id. */
  readonly #due = new Map<string, SandboxRecord>();
  readonly #writing = new Map<string, Promise<void>>();
  readonly #closed = new AbortController();

  constructor(directory: Sandboxes, log: Logger) {
    this.#directory = directory;
    this.#log = log;
  }

  /** Resolves when the directory has the record, or after a second while retries continue. */
  async publish(record: SandboxRecord): Promise<void> {
    this.#due.set(record.id, record);
    const writing = this.#writing.get(record.id) ?? this.#write(record.id);
    await settledWithin(writing, PUBLISHED_MS_MAX);
  }

  /**
   * Publishes a new sandbox: resolves only when the directory has it, so that its creator can find
   * it.
   * @throws AppError `unavailable` when the agent ends before the directory has it
   */
  async publishNew(record: SandboxRecord): Promise<void> {
    this.#due.set(record.id, record);
    await (this.#writing.get(record.id) ?? this.#write(record.id));
    if (this.#due.has(record.id)) throw shuttingDown();
  }

  /** Resolves when the sandbox is gone from the directory. @throws AppError when the agent ends */
  async remove(record: SandboxRecord): Promise<void> {
    const { accountId, id: sandboxId, config } = record;
    this.#due.delete(sandboxId);
    await this.#writing.get(sandboxId);
    await this.#repeat(() => this.#directory.remove({ accountId, sandboxId, name: config.name }));
  }

  close(): void {
    this.#closed.abort();
  }

  #write(sandboxId: string): Promise<void> {
    const writing = (async () => {
      try {
        for (;;) {
          const record = this.#due.get(sandboxId);
          if (record === undefined) return;
          await this.#repeat(() => this.#directory.publish(this.#due.get(sandboxId) ?? record));
          if (this.#due.get(sandboxId) === record) this.#due.delete(sandboxId);
        }
      } catch (error) {
        this.#log.warn({ sandboxId, err: toError(error) }, 'sandbox:publishFailed');
      } finally {
        this.#writing.delete(sandboxId);
      }
    })();
    this.#writing.set(sandboxId, writing);
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

const shuttingDown = (): AppError =>
  new AppError('unavailable', 'the host is shutting down; try again');
