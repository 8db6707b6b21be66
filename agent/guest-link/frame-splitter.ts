import { stuffedFrameMax } from './guest-protocol.ts';

/** Cuts a stream at its zeros. What it holds is never more than one frame and one chunk. */
export class FrameSplitter {
  #held: Buffer[] = [];
  #heldBytes = 0;

  /**
   * What lies between zeros; the zero that begins a conversation gives nothing.
   * @throws Error when no frame is as long as what comes before a zero
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
