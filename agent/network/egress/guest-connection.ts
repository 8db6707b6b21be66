import type { SerialQueue } from '../../system/queues/serial-queue.ts';
import type { Slot } from './slot.ts';

/** A connection of a guest that speaks HTTP to the proxy. */
export interface GuestConnection {
  readonly slot: Slot;
  /** Where the guest connected to. */
  readonly address: string;
  readonly port: number;
  /** The name in its ClientHello, when the proxy has ended TLS. */
  readonly tlsName: string | undefined;
  /** Its requests are handled one after the other. */
  readonly exchanges: SerialQueue;
}
