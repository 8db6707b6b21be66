import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import Type from 'typebox';
import { Backoff } from '../../../../shared/backoff.ts';
import { runInBackground } from '../../../../shared/background.ts';
import { compile } from '../../../../shared/validate.ts';
import { SerialQueue } from '../../../system/queues/serial-queue.ts';
import { QmpClient } from './qmp-client.ts';

const BACKOFF_MS = { min: 20, max: 1000 } as const;
const POLL_MS = 1;
/** How long to wait when the host had no free space, for the machine's disk or for our records. */
const FREE_SPACE_RETRY_MS = 2000;

const parseStatus = compile(Type.Object({ status: Type.String() }));

/**
 * Keeps a connection to a machine's monitor and reports the state in which the machine stopped,
 * even if that was before the connection: QEMU keeps its state until it is told to quit.
 */
export class MonitorWatch {
  readonly #path: string;
  readonly #onStopped: (status: string, wasConnected: boolean) => Promise<void>;
  readonly #onContinued: () => void;
  readonly #closed = new AbortController();
  #client: QmpClient | undefined;
  #retryTimer: NodeJS.Timeout | undefined;
  readonly #checks = new SerialQueue();

  /**
   * @param onStopped called with QEMU's name for the state, such as `shutdown` or `guest-panicked`,
   *   and with whether the agent was connected when the machine stopped
   * @param onContinued called whenever the machine runs again after a stop, whoever continued it
   */
  constructor(
    path: string,
    onStopped: (status: string, wasConnected: boolean) => Promise<void>,
    onContinued: () => void,
  ) {
    this.#path = path;
    this.#onStopped = onStopped;
    this.#onContinued = onContinued;
  }

  get client(): QmpClient | undefined {
    return this.#client;
  }

  /** Keeps the connection until {@link close}, or until `isAlive` is false when it is cut off. */
  async run(isAlive: () => boolean): Promise<void> {
    const { signal } = this.#closed;
    const backoff = new Backoff(BACKOFF_MS);
    while (!signal.aborted && isAlive()) {
      const wasOpen = await this.#useConnection();
      if (wasOpen) backoff.reset();
      await backoff.pause({ signal });
    }
    clearTimeout(this.#retryTimer);
  }

  /** Waits until the monitor answers. @throws the signal's reason */
  async ready(signal: AbortSignal): Promise<QmpClient> {
    while (this.#client === undefined) {
      signal.throwIfAborted();
      await sleep(POLL_MS);
    }
    return this.#client;
  }

  /** Tells QEMU to end at once. */
  async quit(): Promise<void> {
    await this.#client?.execute('quit');
  }

  close(): void {
    this.#closed.abort();
    this.#client?.close();
  }

  async #useConnection(): Promise<boolean> {
    try {
      const listener = ({ name }: { name: string }): void => {
        // A machine that the guest has put to sleep is not said to stop.
        if (name === 'STOP' || name === 'SUSPEND') this.#check({ wasConnected: true });
        if (name === 'RESUME') this.#onContinued();
      };
      const client = await QmpClient.open(this.#path, { listener });
      const closed = once(client, 'closed');
      if (this.#closed.signal.aborted) client.close();
      this.#client = client;
      this.#check({ wasConnected: false });
      await closed;
      return true;
    } catch {
      return false; // The monitor is not there yet, or is gone.
    } finally {
      this.#client = undefined;
    }
  }

  #check(how: { wasConnected: boolean }): void {
    const retry = (): void => this.#retryLater(() => this.#check(how));
    this.#checks.add(() => this.#readStatus(how)).catch(retry);
  }

  #retryLater(action: () => void): void {
    clearTimeout(this.#retryTimer);
    if (this.#client !== undefined) this.#retryTimer = setTimeout(action, FREE_SPACE_RETRY_MS);
  }

  /** If this fails, the next attempt or connection reports the state. */
  async #readStatus({ wasConnected }: { wasConnected: boolean }): Promise<void> {
    const { status } = parseStatus(await this.#client?.execute('query-status'), 'query-status');
    if (status === 'io-error') {
      this.#retryLater(() => runInBackground('machine.continue', () => this.#continue()));
    } else if (status !== 'running') {
      await this.#onStopped(status, wasConnected);
    }
  }

  async #continue(): Promise<void> {
    await this.#client?.execute('cont').catch(() => undefined);
  }
}
