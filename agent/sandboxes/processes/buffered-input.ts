/**
 * The newest bytes of a stream: all that were not sent yet, and before them as many as may have to
 * be sent again. Appending moves each byte a few times at most, however short the pieces are.
 */
export class BufferedInput {
  readonly #retainedMax: number;
  #buffer: Buffer = Buffer.alloc(0);
  #start = 0;
  #end = 0;

  /** @param retainedMax how many bytes `trim` keeps */
  constructor(retainedMax: number) {
    this.#retainedMax = retainedMax;
  }

  append(bytes: Buffer): void {
    if (this.#end + bytes.length > this.#buffer.length) this.#move(bytes.length);
    bytes.copy(this.#buffer, this.#end);
    this.#end += bytes.length;
  }

  /**
   * The last bytes, of which there may be fewer. They stay as they are when others are appended.
   */
  last(length: number): Buffer {
    return this.#buffer.subarray(Math.max(this.#start, this.#end - length), this.#end);
  }

  /** Drops the bytes that are not needed any more once all were sent. */
  trim(): void {
    this.#start = Math.max(this.#start, this.#end - this.#retainedMax);
    if (this.#buffer.length > 2 * this.#retainedMax) this.#move(0);
  }

  clear(): void {
    this.#buffer = Buffer.alloc(0);
    this.#start = 0;
    this.#end = 0;
  }

  /** Moves to a buffer of its own size, never within one: parts of the old one may be under way. */
  #move(moreBytes: number): void {
    const retained = this.last(Infinity);
    const needed = retained.length + moreBytes;
    const moved = Buffer.allocUnsafe(Math.max(needed, 2 * Math.min(needed, this.#retainedMax)));
    retained.copy(moved);
    this.#buffer = moved;
    this.#start = 0;
    this.#end = retained.length;
  }
}
