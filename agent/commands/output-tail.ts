import { type FileHandle, open, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { newJobId } from '../../shared/ids.ts';
import type { OutputTurns } from './output-turns.ts';

/** Accepts the bytes of a stream; wait for its promise before the next write. */
export interface OutputSink {
  write(chunk: Buffer): Promise<void> | undefined;
}

/** Most commands write less than this and need no file. */
const MEMORY_BYTES = 256 * 1024;

export interface TailStorage {
  /** Where files are created; each is unlinked as soon as it is open, so none can be left over. */
  readonly directory: string;
  readonly turns: OutputTurns;
}

/**
 * Keeps the last `bytesMax` bytes of a stream and counts those that it dropped before them. Long
 * output goes to a file used as a ring buffer, so it does not take the agent's memory.
 */
export class OutputTail implements OutputSink {
  readonly #bytesMax: number;
  readonly #storage: TailStorage;
  #chunks: Buffer[] = [];
  #file: FileHandle | undefined;
  /** Bytes written in total. */
  #bytes = 0;
  #closed = false;

  constructor(bytesMax: number, storage: TailStorage) {
    this.#bytesMax = bytesMax;
    this.#storage = storage;
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
    return this.#storage.turns.run(chunk.length, () => this.#append(chunk));
  }

  /** Reads the kept bytes. Call it after the last write. */
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

  /** Closes the file and discards the kept bytes. */
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
    const path = join(this.#storage.directory, newJobId());
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
    if (bytesRead === 0) throw new Error('the file with kept output was truncated');
    done += bytesRead;
  }
}
