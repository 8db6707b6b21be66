import { AppError, toError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { GuestChannel } from '../../machines/guest-link/guest-channel.ts';
import type { GuestExit, GuestOutput } from '../../machines/guest-link/guest-types.ts';
import { toFilesError } from './files-error.ts';

const SIGTERM = 15;
/** How long an operation that was cut has to remove what it began. */
const END_MS = 2_000;

const tooSlow = (): AppError =>
  new AppError('timeout', 'the file system of the sandbox does not answer');
const broken = (): AppError =>
  new AppError('unavailable', 'the sandbox broke the operation off; try again');

/** Resolves as the work does. @throws AppError `timeout` when that takes too long */
async function inTime<T>(work: Promise<T>): Promise<T> {
  if (!(await settledWithin(work, SANDBOX_LIMITS.fileAnswerMsMax))) throw tooSlow();
  return work;
}

/**
 * An operation on files in the guest: its answer, read as it is wanted, and its input. The guest
 * sends no more than a window beyond what was read.
 */
export class FileWorker {
  readonly id: string;
  readonly channel: GuestChannel;
  readonly #pieces: Buffer[] = [];
  /** Output before this offset has arrived; of that, the caller has read up to `#read`. */
  #received = 0;
  #read = 0;
  #exit: GuestExit | undefined;
  #failure: Error | undefined;
  readonly #waiting: (() => void)[] = [];
  #changed: () => void = () => undefined;

  constructor(id: string, channel: GuestChannel) {
    this.id = id;
    this.channel = channel;
  }

  /** @param output whose bytes are valid during this call only */
  receiveOutput({ offset, bytes }: GuestOutput): void {
    this.#received = offset + bytes.length;
    this.#pieces.push(Buffer.from(bytes));
    this.#wake();
  }

  receiveExit(exit: GuestExit): void {
    this.#exit = exit;
    this.#wake();
  }

  /** Ends the operation with an error, of which only the first counts. */
  fail(error: Error): void {
    this.#failure ??= error;
    this.#wake();
  }

  get hasExited(): boolean {
    return this.#exit !== undefined;
  }

  /** Sets the one function that is called whenever output or the end has arrived. */
  tell(changed: () => void): void {
    this.#changed = changed;
  }

  /** True when unread bytes have arrived, or the operation is over. */
  get isReadable(): boolean {
    return this.#pieces.length > 0 || this.#isOver || this.#failure !== undefined;
  }

  get #isOver(): boolean {
    return this.#exit !== undefined && this.#received >= this.#exit.end;
  }

  /**
   * Reads at most `max` bytes; undefined at the end.
   * @param isPatient waits without a time limit, as a watch does
   * @throws AppError `timeout`; the reason of a failure
   */
  async next(max: number, isPatient = false): Promise<Buffer | undefined> {
    const piece = await this.#first(isPatient);
    if (piece === undefined) return undefined;
    const taken = piece.subarray(0, max);
    if (taken.length === piece.length) this.#pieces.shift();
    else this.#pieces[0] = piece.subarray(max);
    this.#read += taken.length;
    this.channel.acknowledge(this.id, this.#read);
    return taken;
  }

  /** Reads exactly `length` bytes. @throws AppError `unavailable` when there are fewer */
  async take(length: number, isPatient = false): Promise<Buffer> {
    const parts: Buffer[] = [];
    for (let left = length; left > 0;) {
      const part = await this.next(left, isPatient);
      if (part === undefined) throw broken();
      parts.push(part);
      left -= part.length;
    }
    const [only] = parts;
    return parts.length === 1 && only !== undefined ? only : Buffer.concat(parts);
  }

  /** Resolves when output has arrived, without a time limit. @throws as {@link next} */
  async ready(): Promise<void> {
    const piece = await this.#first(true);
    if (piece === undefined) throw broken();
  }

  async takeNumber(bytes: 1 | 2 | 4): Promise<number> {
    return (await this.take(bytes)).readUIntLE(0, bytes);
  }

  /** Settles when the guest has taken all of it. @throws AppError `timeout` */
  async write(bytes: Buffer): Promise<void> {
    if (this.#failure !== undefined) throw this.#failure;
    try {
      await inTime(this.channel.writeStdin(this.id, bytes));
    } catch (error) {
      throw this.#failure ?? toFilesError(error);
    }
  }

  /**
   * Ends the operation if it has not ended, and has the guest forget it. Resolves when nothing is
   * left of it.
   */
  async end(): Promise<void> {
    try {
      if (!this.hasExited) {
        await this.channel.signal(this.id, SIGTERM);
        if (!(await this.#exitsSoon())) await this.channel.kill(this.id);
        if (!(await this.#exitsSoon())) return; // The guest forgets it with this host.
      }
      await this.channel.forget(this.id);
    } catch (error) {
      this.fail(toError(error)); // The channel is closed, and with it everything has ended.
    }
  }

  async #first(isPatient: boolean): Promise<Buffer | undefined> {
    while (this.#pieces.length === 0) {
      if (this.#failure !== undefined) throw this.#failure;
      if (this.#isOver) return undefined;
      await (isPatient ? this.#change() : inTime(this.#change()));
    }
    return this.#pieces[0];
  }

  #change(): Promise<void> {
    return new Promise((resolve) => {
      this.#waiting.push(resolve);
    });
  }

  #wake(): void {
    this.#changed();
    for (const resolve of this.#waiting.splice(0)) resolve();
  }

  async #exitsSoon(): Promise<boolean> {
    const until = performance.now() + END_MS;
    while (!this.hasExited && performance.now() < until) {
      await settledWithin(this.#change(), until - performance.now());
      // Further output is dropped, so that the operation can go on to its end.
      this.#pieces.length = 0;
      this.channel.acknowledge(this.id, this.#received);
    }
    return this.hasExited;
  }
}
