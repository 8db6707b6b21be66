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
import { MiB, sizeInWords } from '../../../shared/units.ts';

type Welcome = Extract<GuestFrame, { type: 'welcome' }>;

/** Far more than the pipes and buffers between host and guest can still hold of earlier epochs. */
const STALE_BYTES_MAX = 8 * MiB;

/**
 * Kind, request, version, epoch, instance and checksum. Frames of other lengths are skipped unread.
 */
const WELCOME_STUFFED_BYTES = stuffedLengthMax(1 + 4 + 2 + 16 + 16 + 4);

/** Looks for the answer to one hello among leftover bytes of earlier epochs. */
class WelcomeSearch {
  readonly #epoch: string;
  #seenBytes = 0;
  #held = Buffer.alloc(0);

  constructor(epoch: string) {
    this.#epoch = epoch;
  }

  /**
   * @returns the welcome and the bytes after it
   * @throws GuestProtocolError when too many bytes came before it
   */
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
    if (this.#seenBytes > STALE_BYTES_MAX) {
      throw new GuestProtocolError(`no welcome within ${sizeInWords(STALE_BYTES_MAX)}`);
    }
    // More bytes than a frame has cannot become a frame, whatever follows.
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
 * Sends a hello with a new epoch and waits until the guest repeats it. Everything before that
 * answer was meant for an earlier host. When this fails, the stream is destroyed.
 * @throws GuestUnavailableError when no welcome came in time
 * @throws GuestProtocolError when too many other bytes came
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
      stream.on('error', () => undefined); // Anything that the peer still sends comes too late.
      stream.destroy();
      reject(error);
    };
    const onClose = (): void => fail(new GuestUnavailableError('the guest hung up'));
    const onData = (chunk: Buffer): void => {
      try {
        const found = search.push(chunk);
        if (found === undefined) return;
        stop();
        stream.pause(); // The next bytes are for the channel, which is not there yet.
        resolve(found);
      } catch (error) {
        fail(error as Error);
      }
    };
    const late = (): void => fail(new GuestUnavailableError('the guest did not answer in time'));
    const timer = setTimeout(late, timeoutMs);
    stream.on('data', onData).on('error', onClose).on('close', onClose);
    stream.write(Buffer.alloc(1)); // Terminates a frame that a former host left incomplete.
    stream.write(
      encodeHostFrame({ type: 'hello', request: 0, version: GUEST_PROTOCOL_VERSION, epoch }),
    );
  });
}
