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
  abstract close(): void;

  constructor() {
    super();
    this.setMaxListeners(0); // Each request that waits for the guest is one.
  }

  /**
   * Waits for the guest where it does not answer now, as after a restart of the agent.
   * @throws an AbortError when there is no channel in time
   */
  async opened(signal: AbortSignal): Promise<GuestChannel> {
    for (;;) {
      const { channel } = this;
      if (channel !== undefined) return channel;
      await once(this, 'opened', { signal });
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
