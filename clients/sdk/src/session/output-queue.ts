import type { OutputChunk } from './frames.ts';
import type { Gate } from './gate.ts';

/**
 * @internal Output that has arrived and was not read yet. Its end, or failure, follows the last
 *   piece.
 */
export class OutputQueue {
  readonly #chunks: OutputChunk[] = [];
  readonly #gate: Gate;
  #bytes = 0;
  #end: { readonly error: Error | undefined } | undefined;

  /** @param gate opened with every change */
  constructor(gate: Gate) {
    this.#gate = gate;
  }

  /** How many bytes wait to be read. */
  get bytes(): number {
    return this.#bytes;
  }

  push(chunk: OutputChunk): void {
    if (this.#end !== undefined) return;
    this.#chunks.push(chunk);
    this.#bytes += chunk.bytes.length;
    this.#gate.open();
  }

  /** Ends the queue after what it holds; with an error, `next` then fails. */
  end(error?: Error): void {
    this.#end ??= { error };
    this.#gate.open();
  }

  /** The next piece; undefined after the last one. */
  async next(): Promise<OutputChunk | undefined> {
    await this.#gate.until(() => this.#chunks.length > 0 || this.#end !== undefined);
    const chunk = this.#chunks.shift();
    if (chunk === undefined) {
      if (this.#end?.error !== undefined) throw this.#end.error;
      return undefined;
    }
    this.#bytes -= chunk.bytes.length;
    this.#gate.open();
    return chunk;
  }
}
