import { once } from 'node:events';
import { Backoff } from '../../../shared/backoff.ts';
import { runInBackground } from '../../../shared/background.ts';
import type { GuestProcessRecord } from '../guest-link/guest-protocol.ts';
import { toError } from '../../../shared/errors.ts';
import { connectSocket } from './connect-socket.ts';
import { GuestChannel } from '../guest-link/guest-channel.ts';
import { GuestLink } from '../guest-link/guest-link.ts';

const BACKOFF_MS = { min: 100, max: 2000 } as const;
/**
 * How long a guest may take for its first message before a new connection is tried; a booting guest
 * sends it as soon as it runs.
 */
export const GUEST_OPEN_MS = 10_000;
/** After a connection that lasted this long, the backoff begins anew. */
const STEADY_MS = 10_000;

interface LinkOptions {
  readonly ready?: Promise<void>;
  readonly openTimeoutMs?: number;
}

/** The link to a guest over a socket: of its virtual machine, or of its own in a container. */
export class SocketGuestLink extends GuestLink {
  readonly #path: string;
  readonly #openTimeoutMs: number;
  #channel: GuestChannel | undefined;
  #processes: readonly GuestProcessRecord[] = [];

  /** @param ready when to connect for the first time */
  constructor(path: string, { ready, openTimeoutMs = GUEST_OPEN_MS }: LinkOptions = {}) {
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

  async #keepOpen(): Promise<void> {
    const backoff = new Backoff(BACKOFF_MS);
    const signal = this.closed;
    while (!signal.aborted) {
      const openedAt = performance.now();
      const wasOpen = await this.#useConnection();
      if (wasOpen && performance.now() - openedAt > STEADY_MS) backoff.reset();
      await backoff.pause({ signal });
    }
  }

  /** Serves one connection until it ends. @returns whether the guest answered on it */
  async #useConnection(): Promise<boolean> {
    const socket = connectSocket(this.#path);
    const giveUp = (): void => {
      socket.destroy();
    };
    const signal = this.closed;
    signal.addEventListener('abort', giveUp, { once: true });
    try {
      await once(socket, 'connect');
      const opened = await GuestChannel.open(socket, { timeoutMs: this.#openTimeoutMs });
      await this.#serve(opened.channel, opened.processes);
      return true;
    } catch {
      socket.destroy();
      return false; // The guest is not there yet, or is no guest of ours; the caller tries again.
    } finally {
      signal.removeEventListener('abort', giveUp);
    }
  }

  async #serve(channel: GuestChannel, processes: readonly GuestProcessRecord[]): Promise<void> {
    const closed = Promise.withResolvers<Error | undefined>();
    channel.once('closed', (error) => closed.resolve(error));
    if (this.closed.aborted) return channel.close();
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
