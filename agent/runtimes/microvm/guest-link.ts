import { EventEmitter } from 'node:events';
import type { GuestProcessRecord } from '../../../shared/guest-protocol.ts';
import type { GuestChannel } from './guest-channel.ts';

export interface GuestLinkEvents {
  /** A new epoch: these are the guest's processes; follow or unfollow each. */
  opened: [channel: GuestChannel, processes: readonly GuestProcessRecord[]];
  closed: [error: Error | undefined];
}

/** The way to one guest: opens its channel again whenever it breaks, until it is closed. */
export abstract class GuestLink extends EventEmitter<GuestLinkEvents> {
  /** Undefined while the guest does not answer. */
  abstract readonly channel: GuestChannel | undefined;
  /** What the guest said when the present channel was opened. */
  abstract readonly processes: readonly GuestProcessRecord[];
  abstract close(): void;
}
