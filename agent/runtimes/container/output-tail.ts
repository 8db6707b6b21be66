/** What takes the bytes of a stream. */
export interface OutputSink {
  write(chunk: Buffer): void;
}

/** Keeps the last `bytesMax` bytes of a stream and counts what it had to drop before them. */
export class OutputTail implements OutputSink {
  readonly #bytesMax: number;
  #chunks: Buffer[] = [];
  #keptBytes = 0;
  #droppedBytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  get droppedBytes(): number {
    return this.#droppedBytes;
  }

  write(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#keptBytes += chunk.length;
    // Cut only now and then: taking a little off the front of a long list each time is slow.
    if (this.#keptBytes > 2 * this.#bytesMax) this.#cut();
  }

  /** The kept bytes. */
  read(): Buffer {
    this.#cut();
    return this.#chunks[0] ?? Buffer.alloc(0);
  }

  #cut(): void {
    const all = Buffer.concat(this.#chunks);
    const excess = Math.max(0, all.length - this.#bytesMax);
    // A copy, so that the dropped part does not stay in memory behind a view of the rest.
    const kept = excess === 0 ? all : Buffer.from(all.subarray(excess));
    this.#chunks = [kept];
    this.#keptBytes = kept.length;
    this.#droppedBytes += excess;
  }
}
