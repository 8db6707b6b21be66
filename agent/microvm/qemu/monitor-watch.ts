import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import Type from 'typebox';
import { runInBackground } from '../../../shared/background.ts';
import { compile } from '../../../shared/validate.ts';
import { QmpClient } from './qmp-client.ts';

const BACKOFF_MS = { min: 20, max: 1000 } as const;
const LOOK_MS = 1;
/** When there was no room on the host, for the machine or for what is noted of it: until the next try. */
const ROOM_RETRY_MS = 2000;

const parseStatus = compile(Type.Object({ status: Type.String() }));

/**
 * Keeps a connection to a machine's monitor and says in what state the machine stopped: also when
 * that was before the connection, since QEMU stays as it is until it is told to quit.
 */
export class MonitorWatch {
  readonly #path: string;
  readonly #onStopped: (status: string, isNews: boolean) => Promise<void>;
  readonly #closed = new AbortController();
  #client: QmpClient | undefined;
  #roomTimer: NodeJS.Timeout | undefined;
  #looking: Promise<void> = Promise.resolve();

  /**
   * @param onStopped with QEMU's name for the state: `shutdown`, `guest-panicked` …; `isNews` when the
   *   machine stopped just now, not while nobody was connected
   */
  constructor(path: string, onStopped: (status: string, isNews: boolean) => Promise<void>) {
    this.#path = path;
    this.#onStopped = onStopped;
  }

  get client(): QmpClient | undefined {
    return this.#client;
  }

  /** Connects again whenever it is cut off, until nobody is to be watched any more. */
  async run(isAlive: () => boolean): Promise<void> {
    const { signal } = this.#closed;
    let pauseMs: number = BACKOFF_MS.min;
    while (!signal.aborted && isAlive()) {
      const wasOpen = await this.#useConnection();
      pauseMs = wasOpen ? BACKOFF_MS.min : Math.min(pauseMs * 2, BACKOFF_MS.max);
      await sleep(pauseMs, undefined, { signal }).catch(() => undefined);
    }
    clearTimeout(this.#roomTimer);
  }

  /** The monitor, as soon as it answers. @throws Error when it does not in time, or the signal's reason */
  async ready(signal: AbortSignal): Promise<QmpClient> {
    while (this.#client === undefined) {
      signal.throwIfAborted();
      await sleep(LOOK_MS);
    }
    return this.#client;
  }

  /** Has the machine end at once. */
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
        if (name === 'STOP') this.#look({ isNews: true });
      };
      const client = await QmpClient.open(this.#path, { listener });
      const closed = once(client, 'closed');
      if (this.#closed.signal.aborted) client.close();
      this.#client = client;
      this.#look({ isNews: false });
      await closed;
      return true;
    } catch {
      return false; // Not there yet, or not any more.
    } finally {
      this.#client = undefined;
    }
  }

  #look(how: { isNews: boolean }): void {
    const retry = (): void => this.#later(() => this.#look(how));
    this.#looking = this.#looking.then(() => this.#lookNow(how)).catch(retry);
  }

  #later(action: () => void): void {
    clearTimeout(this.#roomTimer);
    if (this.#client !== undefined) this.#roomTimer = setTimeout(action, ROOM_RETRY_MS);
  }

  /** What cannot be told now is told by the next connection. */
  async #lookNow({ isNews }: { isNews: boolean }): Promise<void> {
    const { status } = parseStatus(await this.#client?.execute('query-status'), 'query-status');
    if (status === 'io-error') {
      this.#later(() => runInBackground('machine.continue', () => this.#tryAgain()));
    } else if (status !== 'running') {
      await this.#onStopped(status, isNews);
    }
  }

  async #tryAgain(): Promise<void> {
    await this.#client?.execute('cont').catch(() => undefined);
  }
}
