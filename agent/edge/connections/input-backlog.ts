import { KiB } from '../../../shared/units.ts';
import { ProcessError } from '../../sandboxes/processes/process-error.ts';

const CAPACITY_MIN = 4 * KiB;

/** Bytes that follow each other among all input of a process. */
export interface InputRun {
  readonly offset: number;
  readonly bytes: Buffer;
}

/**
 * Input of one client that waits for what it has sent before, joined to one run: it takes no more
 * than twice its bytes, however small the frames are in which it comes.
 */
export class InputBacklog {
  #offset = 0;
  #length = 0;
  #buffer: Buffer = Buffer.alloc(0);

  /**
   * Adds what is new of a frame.
   * @throws ProcessError `input_conflict` when it does not go on where the input before it ends
   */
  append({ offset, bytes }: InputRun): void {
    if (this.#length === 0) this.#offset = offset;
    const end = this.#offset + this.#length;
    if (offset > end) {
      throw new ProcessError('input_conflict', `input goes on at ${end}, not at ${offset}`);
    }
    const fresh = bytes.subarray(end - offset);
    this.#grow(this.#length + fresh.length);
    fresh.copy(this.#buffer, this.#length);
    this.#length += fresh.length;
  }

  /** Takes all of it out; undefined when there is none. */
  take(): InputRun | undefined {
    if (this.#length === 0) return undefined;
    const run = { offset: this.#offset, bytes: this.#buffer.subarray(0, this.#length) };
    this.#length = 0;
    this.#buffer = Buffer.alloc(0);
    return run;
  }

  #grow(length: number): void {
    if (length <= this.#buffer.length) return;
    const grown = Buffer.allocUnsafe(Math.max(length, 2 * this.#buffer.length, CAPACITY_MIN));
    this.#buffer.copy(grown, 0, 0, this.#length);
    this.#buffer = grown;
  }
}
