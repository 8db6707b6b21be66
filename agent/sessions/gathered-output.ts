import { KiB } from '../../shared/units.ts';
import type { OutputPiece } from '../sandboxes/processes/attachment.ts';

const BYTES_MAX = 64 * KiB;

/**
 * Joins the pieces of output that come in one turn of the event loop. Guests send what a terminal hands
 * out, 2 to 4 KiB at a time, and for a browser each frame costs more than its bytes.
 */
export class GatheredOutput {
  readonly #send: (piece: OutputPiece) => void;
  #stream: OutputPiece['stream'] = 1;
  #offset = 0;
  #parts: Buffer[] = [];
  #bytes = 0;

  /** @param send given each joined piece; its bytes are its own */
  constructor(send: (piece: OutputPiece) => void) {
    this.#send = send;
  }

  /** @param piece its bytes are copied: they are valid during this call only */
  add({ stream, offset, bytes }: OutputPiece): void {
    const continues = stream === this.#stream && offset === this.#offset + this.#bytes;
    if (!continues || this.#bytes + bytes.length > BYTES_MAX) this.flush();
    if (this.#parts.length === 0) {
      this.#stream = stream;
      this.#offset = offset;
      process.nextTick(() => this.flush());
    }
    this.#parts.push(Buffer.from(bytes));
    this.#bytes += bytes.length;
  }

  /** Sends what was gathered; nothing happens when there is nothing. */
  flush(): void {
    if (this.#parts.length === 0) return;
    const [stream, offset, parts] = [this.#stream, this.#offset, this.#parts];
    this.#parts = [];
    this.#bytes = 0;
    const [first = Buffer.alloc(0), ...rest] = parts;
    const bytes = rest.length === 0 ? first : Buffer.concat(parts);
    this.#send({ stream, offset, bytes });
  }
}
