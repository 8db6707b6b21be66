import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { runInBackground } from '../../shared/background.ts';
import type { GuestProcessRecord } from '../guest-link/guest-protocol.ts';
import { toError } from '../../shared/errors.ts';
import { connectSocket } from './qemu/connect-socket.ts';
import { GuestChannel } from '../guest-link/guest-channel.ts';
import { GuestLink } from '../guest-link/guest-link.ts';

const BACKOFF_MS = { min: 100, max: 2000 } as const;
/** A connection that lasted so long is no sign of a guest that cannot hold one. */
const STEADY_MS = 10_000;

/** The way to a guest whose port is a socket of its virtual machine. */
export class SocketGuestLink extends GuestLink {
  readonly #path: string;
  readonly #openTimeoutMs: number;
  readonly #closed = new AbortController();
  #channel: GuestChannel | undefined;
  #processes: readonly GuestProcessRecord[] = [];

  /**
   * @param openTimeoutMs how long the guest may take for its first word on each connection; one that
   *   boots answers as soon as it is there
   * @param ready before this nothing is asked
   */
  constructor(path: string, openTimeoutMs: number, ready: Promise<void> = Promise.resolve()) {
    super();
    this.#path = path;
    this.#openTimeoutMs = openTimeoutMs;
    runInBackground('guest.keepLink', async () => {
      await ready;
      await this.#keepOpen();
    });
  }

  get channel(): GuestChannel | undefined {
    return this.#channel;
  }

  get processes(): readonly GuestProcessRecord[] {
    return this.#processes;
  }

  close(): void {
    this.#closed.abort();
    this.#channel?.close();
  }

  async #keepOpen(): Promise<void> {
    let pauseMs: number = BACKOFF_MS.min;
    while (!this.#closed.signal.aborted) {
      const openedAt = performance.now();
      const wasOpen = await this.#useConnection();
      const isSteady = wasOpen && performance.now() - openedAt > STEADY_MS;
      await sleep(pauseMs, undefined, { signal: this.#closed.signal }).catch(() => undefined);
      pauseMs = isSteady ? BACKOFF_MS.min : Math.min(pauseMs * 2, BACKOFF_MS.max);
    }
  }

  /** Resolves when the connection is over; true if the guest answered on it. */
  async #useConnection(): Promise<boolean> {
    const socket = connectSocket(this.#path);
    const giveUp = (): void => {
      socket.destroy();
    };
    const { signal } = this.#closed;
    signal.addEventListener('abort', giveUp, { once: true });
    try {
      await once(socket, 'connect');
      const opened = await GuestChannel.open(socket, { timeoutMs: this.#openTimeoutMs });
      await this.#serve(opened.channel, opened.processes);
      return true;
    } catch {
      socket.destroy();
      return false; // Not there yet, or not a guest of ours: it is tried again.
    } finally {
      signal.removeEventListener('abort', giveUp);
    }
  }

  async #serve(channel: GuestChannel, processes: readonly GuestProcessRecord[]): Promise<void> {
    const closed = Promise.withResolvers<Error | undefined>();
    channel.once('closed', (error) => closed.resolve(error));
    if (this.#closed.signal.aborted) return channel.close();
    this.#channel = channel;
    this.#processes = processes;
    try {
      this.emit('opened', channel, processes);
    } catch (error) {
      channel.close();
      throw toError(error);
    }
    const error = await closed.promise;
    this.#channel = undefined;
    this.#processes = [];
    this.emit('closed', error);
  }
}
