import { type FileHandle, open, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { newJobId } from '../../shared/ids.ts';
import type { OutputTurns } from './output-turns.ts';

/** What takes the bytes of a stream; no more is to be written before its promise settles. */
export interface OutputSink {
  write(chunk: Buffer): Promise<void> | undefined;
}

/** Most commands write less than this, and cost no file. */
const MEMORY_BYTES = 256 * 1024;

export interface TailPlace {
  /** Where files are made; each is unlinked as soon as it is open, so nothing is left of it. */
  readonly directory: string;
  readonly turns: OutputTurns;
}

/**
 * Keeps the last `bytesMax` bytes of a stream and counts those that it dropped before them. Long
 * output lies in a file that is written in a circle, so the agent's memory does not grow with it.
 */
export class OutputTail implements OutputSink {
  readonly #bytesMax: number;
  readonly #place: TailPlace;
  #chunks: Buffer[] = [];
  #file: FileHandle | undefined;
  /** All that was written. */
  #bytes = 0;
  #closed = false;

  constructor(bytesMax: number, place: TailPlace) {
    this.#bytesMax = bytesMax;
    this.#place = place;
  }

  get keptBytes(): number {
    return Math.min(this.#bytes, this.#bytesMax);
  }

  get droppedBytes(): number {
    return this.#bytes - this.keptBytes;
  }

  write(chunk: Buffer): Promise<void> | undefined {
    const memoryBytes = Math.min(MEMORY_BYTES, this.#bytesMax);
    if (this.#file === undefined && this.#bytes + chunk.length <= memoryBytes) {
      this.#chunks.push(chunk);
      this.#bytes += chunk.length;
      return undefined;
    }
    return this.#place.turns.run(chunk.length, () => this.#append(chunk));
  }

  /** The kept bytes. To be called when nothing is written any more. */
  async read(): Promise<Buffer> {
    const file = this.#file;
    if (file === undefined) return Buffer.concat(this.#chunks);
    const kept = Buffer.allocUnsafe(this.keptBytes);
    const begin = this.droppedBytes % this.#bytesMax;
    const first = Math.min(kept.length, this.#bytesMax - begin);
    await readFully(file, kept.subarray(0, first), begin);
    await readFully(file, kept.subarray(first), 0);
    return kept;
  }

  /** Gives the file up; what was kept is gone. */
  async close(): Promise<void> {
    const file = this.#file;
    this.#closed = true;
    this.#file = undefined;
    this.#chunks = [];
    await file?.close();
  }

  async #append(chunk: Buffer): Promise<void> {
    if (this.#closed) return;
    const file = (this.#file ??= await this.#openFile());
    let rest = chunk.subarray(Math.max(0, chunk.length - this.#bytesMax));
    let at = this.#bytes + chunk.length - rest.length;
    while (rest.length > 0) {
      const offset = at % this.#bytesMax;
      const length = Math.min(rest.length, this.#bytesMax - offset);
      const { bytesWritten } = await file.write(rest, 0, length, offset);
      rest = rest.subarray(bytesWritten);
      at += bytesWritten;
    }
    this.#bytes += chunk.length;
  }

  async #openFile(): Promise<FileHandle> {
    const path = join(this.#place.directory, newJobId());
    const file = await open(path, 'wx+', 0o600);
    await unlink(path);
    const kept = Buffer.concat(this.#chunks);
    await file.write(kept, 0, kept.length, 0);
    this.#chunks = [];
    return file;
  }
}

async function readFully(file: FileHandle, into: Buffer, position: number): Promise<void> {
  let done = 0;
  while (done < into.length) {
    const { bytesRead } = await file.read(into, done, into.length - done, position + done);
    if (bytesRead === 0) throw new Error('kept output is shorter than it was');
    done += bytesRead;
  }
}
