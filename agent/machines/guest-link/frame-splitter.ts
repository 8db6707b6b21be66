import { stuffedFrameMax } from './guest-protocol.ts';

/** Splits a stream into frames at its zeros. It never holds more than one frame and one chunk. */
export class FrameSplitter {
  #held: Buffer[] = [];
  #heldBytes = 0;

  /**
   * Yields what lies between zeros: stuffed frames, and an empty one for the zero before a hello.
   * @throws Error when more bytes precede a zero than a frame may have
   */
  *push(chunk: Buffer): Generator<Buffer> {
    let from = 0;
    for (;;) {
      const zero = chunk.indexOf(0, from);
      const piece = chunk.subarray(from, zero === -1 ? chunk.length : zero);
      if (this.#heldBytes + piece.length > stuffedFrameMax) throw new Error('frame is too long');
      if (zero === -1) {
        if (piece.length > 0) this.#held.push(piece);
        this.#heldBytes += piece.length;
        return;
      }
      const frame = this.#held.length === 0 ? piece : Buffer.concat([...this.#held, piece]);
      this.reset();
      from = zero + 1;
      yield frame;
    }
  }

  reset(): void {
    this.#held = [];
    this.#heldBytes = 0;
  }
}
