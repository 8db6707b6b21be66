import type { OutputChunk } from '@berth/sdk';
import { Excerpt, wholeCharacters } from './excerpt.ts';

function join(first: Uint8Array, second: Uint8Array): Uint8Array {
  const all = new Uint8Array(first.length + second.length);
  all.set(first);
  all.set(second, first.length);
  return all;
}

/**
 * Output of a process from an offset on. The first bytes of a character whose others have not come
 * yet are held back at its end, so that the next answer has all of them.
 */
export class ProcessExcerpt {
  readonly stdout = new Excerpt();
  readonly stderr = new Excerpt();
  readonly #offset: number;
  #from: number | undefined;
  #end: number;
  /** Up to three bytes at the very end. */
  #held: Pick<OutputChunk, 'stream' | 'bytes'> | undefined;

  /** @param offset of the first byte that is wanted */
  constructor(offset: number) {
    this.#offset = offset;
    this.#end = offset;
  }

  /** How many bytes of both streams it has, but those held back. */
  get total(): number {
    return this.stdout.total + this.stderr.total;
  }

  /** Bytes at the beginning that did not come: they are not kept any more. */
  get skippedBytes(): number {
    return Math.max(0, (this.#from ?? this.#offset) - this.#offset);
  }

  /** The offset of the first byte that it does not have. */
  get nextOffset(): number {
    return this.#end - (this.#held?.bytes.length ?? 0);
  }

  add({ stream, offset, bytes }: OutputChunk): void {
    this.#from ??= offset;
    this.#end = offset + bytes.length;
    if (this.#held?.stream !== stream) this.release();
    const known = this.#held === undefined ? bytes : join(this.#held.bytes, bytes);
    const whole = wholeCharacters(known);
    this[stream].add(known.subarray(0, whole));
    const isWhole = whole === known.length;
    this.#held = isWhole ? undefined : { stream, bytes: known.slice(whole) };
  }

  /** Takes what is held back as it is, because the rest of it will not come, or not here. */
  release(): void {
    if (this.#held !== undefined) this[this.#held.stream].add(this.#held.bytes);
    this.#held = undefined;
  }
}
