import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { runInBackground } from '../../shared/background.ts';
import { GuestChannel } from '../../agent/machines/guest-link/guest-channel.ts';
import { GuestLink } from '../../agent/machines/guest-link/guest-link.ts';
import type { GuestProcessRecord } from '../../agent/machines/guest-link/guest-protocol.ts';

const REOPEN_AFTER_MS = 100;

/** The way to a guest in memory; opened again whenever it breaks, as that over a socket is. */
export class InMemoryGuestLink extends GuestLink {
  channel: GuestChannel | undefined;
  processes: readonly GuestProcessRecord[] = [];
  readonly #connect: () => Duplex;
  #stream: Duplex | undefined;

  constructor(connect: () => Duplex) {
    super();
    this.#connect = connect;
    runInBackground('guest.keepLink', () => this.#keepOpen());
  }

  override close(): void {
    super.close();
    this.#stream?.destroy();
  }

  async #keepOpen(): Promise<void> {
    for (;;) {
      await this.#useConnection();
      if (this.closed.aborted) return;
      await sleep(REOPEN_AFTER_MS, undefined, { ref: false });
    }
  }

  async #useConnection(): Promise<void> {
    if (this.closed.aborted) return;
    try {
      this.#stream = this.#connect();
      const { channel, processes } = await GuestChannel.open(this.#stream);
      if (this.closed.aborted) return channel.close();
      const closed = new Promise((resolve) => {
        channel.once('closed', resolve);
      });
      this.channel = channel;
      this.processes = processes;
      this.emit('opened', channel, processes);
      await closed;
    } catch {
      this.#stream?.destroy(); // The guest did not answer in time: asked again.
    }
    this.channel = undefined;
    this.processes = [];
    this.emit('closed', undefined);
  }
}
