import type { GuestConnection } from './guest-connection.ts';
import { GuestFailure } from './guest-errors.ts';

/** A clock that is off by less is left alone, so that an undisturbed guest sees no steps. */
const TOLERANCE_MS = 50;
/** A reading that took longer to arrive is repeated: nobody knows when in between it was made. */
const TRIP_MS_MAX = 200;
const READINGS_MAX = 3;

/** By how much the guest's clock is behind the host's, and where its monotonic clock began. */
interface Reading {
  readonly behindMs: number;
  /** `behindMs` is right to within this. */
  readonly errorMs: number;
  /** The host's time at which the guest's monotonic clock read zero. */
  readonly zeroUs: number;
}

/**
 * Keeps the clock of a guest right. Nothing inside a machine knows how long it stood still, and an
 * emulated one that stalls for seconds misses a wrap of its only counter. So the host compares the
 * clocks, and has the guest step its own only when that is off.
 */
export class GuestClock {
  readonly #connection: GuestConnection;
  #checking: Promise<void> | undefined;
  /** Guests of earlier versions neither tell nor correct the time; they are only pinged. */
  #isAsked = true;

  constructor(connection: GuestConnection) {
    this.#connection = connection;
  }

  /**
   * Resolves when the guest answers and its clock is right. Calls that overlap share the work.
   * @throws GuestUnavailableError when the guest does not answer in time
   */
  check(): Promise<void> {
    this.#checking ??= this.#check().finally(() => {
      this.#checking = undefined;
    });
    return this.#checking;
  }

  async #check(): Promise<void> {
    try {
      if (this.#isAsked) return await this.#correct();
    } catch (error) {
      if (!(error instanceof GuestFailure)) throw error;
      this.#isAsked = false;
    }
    await this.#connection.request({ type: 'ping' });
  }

  async #correct(): Promise<void> {
    let best = await this.#read();
    for (let count = 1; count < READINGS_MAX && best.errorMs * 2 > TRIP_MS_MAX; count += 1) {
      const next = await this.#read();
      if (next.errorMs < best.errorMs) best = next;
    }
    if (Math.abs(best.behindMs) <= best.errorMs + TOLERANCE_MS) return;
    // Relative to the monotonic clock, so that a request which is late or repeated does no harm.
    await this.#connection.request({ type: 'setClock', zeroUs: Math.max(0, best.zeroUs) });
  }

  async #read(): Promise<Reading> {
    const sentAt = Date.now();
    let receivedAt = sentAt;
    const apply = (): void => {
      receivedAt = Date.now();
    };
    const { realUs, monotonicUs } = await this.#connection.ask(
      'time',
      { type: 'readClock' },
      { apply },
    );
    const nowUs = Math.round((sentAt + receivedAt) * 500);
    return {
      behindMs: (nowUs - realUs) / 1000,
      // Negative if the host's own clock was set back in between.
      errorMs: Math.abs(receivedAt - sentAt) / 2,
      zeroUs: nowUs - monotonicUs,
    };
  }
}
