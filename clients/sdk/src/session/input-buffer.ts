import { BerthError } from '../errors.ts';
import { Gate } from './gate.ts';

interface Piece {
  readonly offset: number;
  readonly bytes: Uint8Array;
}

const PIECE_BYTES = 64 * 1024;
const UNTAKEN_BYTES_MAX = 1024 * 1024;

/** Sends one piece of input over the present connection. */
type Send = (offset: number, bytes: Uint8Array) => void;

/**
 * @internal Input on its way to a process. What the process has not taken is kept, and sent again
 * over the next connection; the server ignores what it has.
 */
export class InputBuffer {
  readonly #gate = new Gate();
  #untaken: Piece[] = [];
  /** Behind the last byte; undefined until the server has told where input begins. */
  #end: number | undefined;
  #isClosed = false;
  #isEndSent = false;
  #isOver = false;
  #error: Error | undefined;
  #connection: { readonly send: Send; readonly close: () => void } | undefined;

  /**
   * Takes over bytes, as soon as fewer than 1 MiB wait for the process.
   * @throws BerthError `input_closed`
   */
  async write(bytes: Uint8Array, signal?: AbortSignal): Promise<void> {
    for (let at = 0; at < bytes.length; at += PIECE_BYTES) {
      await this.#gate.until(() => this.#hasRoom || this.#isOver, signal);
      if (this.#isClosed) throw new BerthError('input_closed', 'the input was closed before');
      if (this.#error !== undefined) throw this.#error;
      // Input after the end is dropped, as with a pipe whose reader has gone, but without a signal.
      if (this.#isOver) return;
      const offset = this.#end ?? 0;
      const piece = { offset, bytes: bytes.slice(at, at + PIECE_BYTES) };
      this.#end = offset + piece.bytes.length;
      this.#untaken.push(piece);
      this.#connection?.send(piece.offset, piece.bytes);
    }
  }

  /** The end of input. */
  close(): void {
    this.#isClosed = true;
    if (this.#end !== undefined) this.#sendEnd();
  }

  /** Resolves when the process has taken everything and was told the end, or reads no more. */
  async flush(signal?: AbortSignal): Promise<void> {
    const isTold = (): boolean => !this.#isClosed || this.#isEndSent;
    await this.#gate.until(() => (this.#untaken.length === 0 && isTold()) || this.#isOver, signal);
    if (this.#error !== undefined) throw this.#error;
  }

  /** The process has ended, or with an error: it cannot be reached any more. */
  over(error?: Error): void {
    this.#isOver = true;
    this.#error = error;
    this.#untaken = [];
    this.#gate.open();
  }

  /**
   * A connection over which everything that was not taken goes again, once it tells how much that
   * is.
   */
  connect(send: Send, close: () => void): (taken: number, end: number) => void {
    let isFirst = true;
    return (taken, end) => {
      this.#untaken = this.#untaken.filter(({ offset, bytes }) => offset + bytes.length > taken);
      // Others may write, too: their bytes are counted with ours.
      if (this.#untaken.length === 0) this.#end = Math.max(this.#end ?? 0, end);
      if (isFirst) {
        isFirst = false;
        this.#connection = { send, close };
        for (const { offset, bytes } of this.#untaken) send(offset, bytes);
        if (this.#isClosed) this.#sendEnd();
      }
      this.#gate.open();
    };
  }

  /** The connection is gone. */
  disconnect(): void {
    this.#connection = undefined;
    this.#isEndSent = false; // Over a connection that broke: it is sent again.
  }

  #sendEnd(): void {
    if (this.#connection === undefined) return;
    this.#connection.close();
    this.#isEndSent = true;
  }

  get #hasRoom(): boolean {
    if (this.#end === undefined) return false;
    const [first] = this.#untaken;
    return first === undefined || this.#end - first.offset < UNTAKEN_BYTES_MAX;
  }
}
