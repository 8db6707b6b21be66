import { EventEmitter, once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import type { GuestProcessRecord } from './guest-protocol.ts';
import type { GuestChannel } from './guest-channel.ts';
import { GuestUnavailableError } from './guest-errors.ts';

const RETRY_MS = 100;

export interface GuestLinkEvents {
  /** A new epoch has begun, with these processes in the guest: follow or unfollow each. */
  opened: [channel: GuestChannel, processes: readonly GuestProcessRecord[]];
  closed: [error: Error | undefined];
}

/** Keeps a channel to one guest: opens it again whenever it breaks, until the link is closed. */
export abstract class GuestLink extends EventEmitter<GuestLinkEvents> {
  /** Undefined while the guest does not answer. */
  abstract readonly channel: GuestChannel | undefined;
  /** The guest's list of processes when the present channel was opened. */
  abstract readonly processes: readonly GuestProcessRecord[];
  readonly #closed = new AbortController();

  constructor() {
    super();
    this.setMaxListeners(0); // Each request that waits for the guest is one.
  }

  /** Aborted by {@link close}. */
  get closed(): AbortSignal {
    return this.#closed.signal;
  }

  /** Closes the channel, and opens none any more: the machine has ended, or the agent ends. */
  close(): void {
    this.#closed.abort();
    this.channel?.close();
  }

  /**
   * Waits for the guest where it does not answer now, as after a restart of the agent.
   * @throws an AbortError when there is no channel in time, or the link is closed
   */
  async opened(signal: AbortSignal): Promise<GuestChannel> {
    const either = AbortSignal.any([signal, this.closed]);
    for (;;) {
      const { channel } = this;
      if (channel !== undefined) return channel;
      await once(this, 'opened', { signal: either });
    }
  }

  /**
   * Makes a request, again on the next channel when one breaks: the guest may receive it twice.
   * @throws whatever the guest answers, or an AbortError when it did not answer in time
   */
  async call(
    signal: AbortSignal,
    request: (channel: GuestChannel) => Promise<void>,
  ): Promise<void> {
    for (;;) {
      const channel = await this.opened(signal);
      try {
        return await request(channel);
      } catch (error) {
        if (!(error instanceof GuestUnavailableError)) throw error;
        signal.throwIfAborted();
        // A channel that is still open may refuse at once: asking without a pause would never end.
        if (this.channel === channel) await sleep(RETRY_MS, undefined, { signal });
      }
    }
  }
}
