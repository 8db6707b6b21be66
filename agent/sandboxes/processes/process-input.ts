import { GUEST_LIMITS } from '../../machines/guest-link/guest-protocol.ts';
import type { GuestChannel } from '../../machines/guest-link/guest-channel.ts';
import { GuestUnavailableError } from '../../machines/guest-link/guest-errors.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import { BufferedInput } from './buffered-input.ts';
import { ProcessError } from './process-error.ts';

/** Input of all processes of a sandbox that the guest has not taken yet. */
export interface WaitingInput {
  bytes: number;
  readonly bytesMax: number;
}

/**
 * The position of input from a client that counts its bytes, and so may send unacknowledged input
 * again.
 */
export interface InputPosition {
  /** Offset of the first byte among all input of the process. */
  readonly offset: number;
  /** Tells this client's input from that of others. */
  readonly clientId: string;
}

/**
 * The input of one process, from all of its clients in the order of its arrival. A channel that
 * breaks loses none of it: on the next one the guest tells how much it has, and the rest is sent
 * again. What may be missing is never more than the guest's window, so that much is kept.
 */
export class ProcessInput {
  readonly #processId: string;
  readonly #queue = new SerialQueue();
  #channel: GuestChannel | undefined;
  #nextChannel = Promise.withResolvers<void>();
  /** The last bytes that were accepted. */
  readonly #buffered = new BufferedInput(GUEST_LIMITS.inputWindow);
  /** How many bytes were accepted. */
  #end: number;
  readonly #waiting: WaitingInput;
  #waitingBytes = 0;
  #isOver = false;
  #closing: Promise<void> | undefined;
  /**
   * Whether anything came from this host, and the client of the last of it, if it has said who it
   * is.
   */
  #hasWritten = false;
  #writer: string | undefined;

  /** @param received how many bytes the guest has already */
  constructor(processId: string, waiting: WaitingInput, received: number) {
    this.#waiting = waiting;
    this.#processId = processId;
    this.#end = received;
  }

  /** Offset after the last byte that was accepted. */
  get acceptedEnd(): number {
    return this.#end;
  }

  /** Sends what the guest may have missed, and from now on over this channel. */
  resume(channel: GuestChannel): void {
    this.#channel = channel;
    this.#nextChannel.resolve();
    this.#nextChannel = Promise.withResolvers();
    this.#queue.add(() => this.#send()).catch(() => undefined); // Only accepting can fail.
  }

  /** The process reads no more: everything else counts as written. */
  end(): void {
    this.#isOver = true;
    this.#buffered.clear();
    this.#nextChannel.resolve();
  }

  /**
   * Resolves when the guest has taken all of it from the host.
   * @param position bytes that were accepted before are ignored
   * @throws ProcessError `no_capacity` when too much waits for a process that does not read;
   * `input_conflict` when the position is not where this client's input goes on
   */
  async write(bytes: Buffer, position?: InputPosition): Promise<void> {
    if (this.#isOver || bytes.length === 0) return;
    const waiting = this.#waiting;
    const { length } = bytes;
    const isTooMuch = this.#waitingBytes + length > SANDBOX_LIMITS.inputWaitingBytesMax;
    if (isTooMuch || waiting.bytes + length > waiting.bytesMax) {
      const message = 'the process does not read its input, and no more input may wait for it';
      throw new ProcessError('no_capacity', message);
    }
    this.#waitingBytes += length;
    waiting.bytes += length;
    try {
      await this.#queue.add(async () => {
        const fresh = this.#unknownOf(bytes, position);
        this.#buffered.append(fresh);
        this.#end += fresh.length;
        this.#hasWritten = true;
        await this.#send();
      });
    } finally {
      this.#waitingBytes -= length;
      waiting.bytes -= length;
    }
  }

  /** End of file, after everything that was written before. It ends once, whoever asks again. */
  async close(): Promise<void> {
    // Both on the same channel: on another one, what was sent on this one may be missing.
    this.#closing ??= this.#queue.add(() =>
      this.#onChannel(async (channel) => {
        await this.#sendOn(channel);
        await channel.closeStdin(this.#processId);
      }),
    );
    await this.#closing;
  }

  /** The part of the bytes that was not accepted before. @throws ProcessError `input_conflict` */
  #unknownOf(bytes: Buffer, position: InputPosition | undefined): Buffer {
    const writer = this.#writer;
    this.#writer = position?.clientId;
    if (position === undefined) return bytes;
    // Bytes at an offset that is taken are the same bytes only if they come from the same client.
    const isOther = this.#hasWritten && writer !== position.clientId;
    const isKnown = position.offset < this.#end && !isOther;
    if (position.offset !== this.#end && !isKnown) {
      this.#writer = writer;
      const message = `input goes on at ${this.#end}, not at ${position.offset}: another client has written`;
      throw new ProcessError('input_conflict', message);
    }
    return bytes.subarray(this.#end - position.offset);
  }

  /** Sends what was accepted and not sent. */
  async #send(): Promise<void> {
    await this.#onChannel((channel) => this.#sendOn(channel));
    this.#buffered.trim();
  }

  async #sendOn(channel: GuestChannel): Promise<void> {
    const unsent = this.#end - channel.stdinSent(this.#processId);
    if (unsent > 0) await channel.writeStdin(this.#processId, this.#buffered.last(unsent));
  }

  /** Makes a request over whichever channel works, unless the process ends first. */
  async #onChannel(request: (channel: GuestChannel) => Promise<void>): Promise<void> {
    let broken: GuestChannel | undefined;
    while (!this.#isOver) {
      const channel = this.#channel;
      if (channel === undefined || channel === broken) {
        await this.#nextChannel.promise;
        continue;
      }
      try {
        return await request(channel);
      } catch (error) {
        if (!(error instanceof GuestUnavailableError)) return; // The guest knows it no more.
        broken = channel;
      }
    }
  }
}
