import { randomUUID } from 'node:crypto';
import type { Duplex } from 'node:stream';
import {
  decodeGuestFrame,
  encodeHostFrame,
  GUEST_PROTOCOL_VERSION,
  stuffedFrameMax,
  type GuestFrame,
} from './guest-protocol.ts';
import { stuffedLengthMax } from './byte-stuffing.ts';
import { GuestProtocolError, GuestUnavailableError } from './guest-errors.ts';
import { MiB } from '../../shared/units.ts';

type Welcome = Extract<GuestFrame, { type: 'welcome' }>;

/** What pipes and buffers between host and guest can still hold of former epochs is far less. */
const STALE_BYTES_MAX = 8 * MiB;

/** Kind, request, version, epoch, instance and checksum. All others are skipped unread. */
const WELCOME_STUFFED_BYTES = stuffedLengthMax(1 + 4 + 2 + 16 + 16 + 4);

/** Looks for the answer to one hello among the remains of former conversations. */
class WelcomeSearch {
  readonly #epoch: string;
  #seenBytes = 0;
  #held = Buffer.alloc(0);

  constructor(epoch: string) {
    this.#epoch = epoch;
  }

  /** The welcome and what came behind it. @throws GuestProtocolError when too much came before */
  push(chunk: Buffer): { welcome: Welcome; rest: Buffer } | undefined {
    this.#seenBytes += chunk.length;
    this.#held = Buffer.concat([this.#held, chunk]);
    let from = 0;
    for (;;) {
      const zero = this.#held.indexOf(0, from);
      if (zero === -1) break;
      const welcome = this.#readWelcome(this.#held.subarray(from, zero));
      from = zero + 1;
      if (welcome !== undefined) return { welcome, rest: this.#held.subarray(from) };
    }
    if (this.#seenBytes > STALE_BYTES_MAX) throw new GuestProtocolError('no welcome in all this');
    // What is longer than a frame is none, whatever follows.
    this.#held = this.#held.subarray(Math.max(from, this.#held.length - stuffedFrameMax));
    return undefined;
  }

  #readWelcome(stuffed: Buffer): Welcome | undefined {
    if (stuffed.length !== WELCOME_STUFFED_BYTES) return undefined;
    try {
      const frame = decodeGuestFrame(stuffed);
      return frame.type === 'welcome' && frame.epoch === this.#epoch ? frame : undefined;
    } catch {
      return undefined; // A frame of a former epoch, cut off.
    }
  }
}

/**
 * Says hello with an epoch of its own and waits for the guest to repeat it. All that comes before
 * was meant for a former host. The stream is destroyed when this fails.
 * @throws GuestUnavailableError when no welcome came in time
 * @throws GuestProtocolError when something else came, and too much of it
 */
export function openEpoch(
  stream: Duplex,
  timeoutMs: number,
): Promise<{ welcome: Welcome; rest: Buffer }> {
  const epoch = randomUUID();
  const search = new WelcomeSearch(epoch);
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      stream.off('data', onData).off('error', fail).off('close', onClose);
    };
    const fail = (error: Error): void => {
      stop();
      stream.on('error', () => undefined); // Whatever it still has to say comes too late.
      stream.destroy();
      reject(error);
    };
    const onClose = (): void => fail(new GuestUnavailableError('the guest hung up'));
    const onData = (chunk: Buffer): void => {
      try {
        const found = search.push(chunk);
        if (found === undefined) return;
        stop();
        stream.pause(); // What comes next is for the channel, which is not there yet.
        resolve(found);
      } catch (error) {
        fail(error as Error);
      }
    };
    const late = (): void => fail(new GuestUnavailableError('the guest did not answer in time'));
    const timer = setTimeout(late, timeoutMs);
    stream.on('data', onData).on('error', onClose).on('close', onClose);
    stream.write(Buffer.alloc(1)); // Ends what a former host was cut off in.
    stream.write(
      encodeHostFrame({ type: 'hello', request: 0, version: GUEST_PROTOCOL_VERSION, epoch }),
    );
  });
}
