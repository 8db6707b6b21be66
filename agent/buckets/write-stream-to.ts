import { fdatasync, writev } from 'node:fs';
import type { Readable } from 'node:stream';
import { promisify } from 'node:util';
import { MiB } from '../../shared/units.ts';

const BATCH_BYTES = MiB;
/** Begins to be made durable while more arrives, so that little is left to do at the end. */
const SYNC_EVERY_BYTES = 32 * MiB;

const writevAsync = promisify(writev);

/** Gathers what arrives and writes it while more arrives: two batches are in memory at most. */
class BatchWriter {
  readonly #fd: number;
  #batch: Buffer[] = [];
  #batchBytes = 0;
  #offset = 0;
  #unsynced = 0;
  #writing: Promise<void> = Promise.resolve();
  #isSyncing = false;
  #synced: Promise<unknown> = Promise.resolve();

  constructor(fd: number) {
    this.#fd = fd;
  }

  async take(chunk: Buffer): Promise<void> {
    this.#batch.push(chunk);
    this.#batchBytes += chunk.length;
    if (this.#batchBytes >= BATCH_BYTES) await this.#flush();
  }

  /** Waits for everything that was begun, also when it failed. */
  async end(): Promise<void> {
    const flushed = this.#flush().then(() => this.#writing);
    await Promise.allSettled([flushed]);
    await Promise.allSettled([this.#synced]); // The last batch may have begun it.
    await Promise.all([flushed, this.#synced]);
  }

  /** Waits for the batch before this one only. */
  async #flush(): Promise<void> {
    const [batch, bytes] = [this.#batch, this.#batchBytes];
    this.#batch = [];
    this.#batchBytes = 0;
    await this.#writing;
    if (bytes === 0) return;
    this.#writing = this.#write(batch, this.#offset);
    this.#writing.catch(() => undefined); // Seen by the next one that waits.
    this.#offset += bytes;
    this.#unsynced += bytes;
    if (this.#unsynced >= SYNC_EVERY_BYTES && !this.#isSyncing) this.#syncEarly();
  }

  async #write(batch: Buffer[], offset: number): Promise<void> {
    let [left, at] = [batch, offset];
    while (left.length > 0) {
      const { bytesWritten } = await writevAsync(this.#fd, left, at);
      at += bytesWritten;
      left = withoutFirst(left, bytesWritten);
    }
  }

  #syncEarly(): void {
    this.#unsynced = 0;
    this.#isSyncing = true;
    // The kernel tells a failure once: the caller's own sync would not hear of it.
    this.#synced = Promise.all([this.#synced, promisify(fdatasync)(this.#fd)]);
    this.#synced.then(
      () => (this.#isSyncing = false),
      () => undefined,
    );
  }
}

function withoutFirst(buffers: readonly Buffer[], bytes: number): Buffer[] {
  let skipped = bytes;
  return buffers.flatMap((buffer) => {
    const skip = Math.min(skipped, buffer.length);
    skipped -= skip;
    return skip === buffer.length ? [] : [buffer.subarray(skip)];
  });
}

/**
 * Writes what arrives to the file, from its beginning. It is durable after the caller's fdatasync.
 * @param cutAt what comes after so many bytes is not written
 * @returns how many bytes arrived
 */
export async function writeStreamTo(fd: number, body: Readable, cutAt = Infinity): Promise<number> {
  const writer = new BatchWriter(fd);
  let arrived = 0;
  try {
    for await (const chunk of body as AsyncIterable<Buffer>) {
      const wanted = chunk.subarray(0, Math.max(0, cutAt - arrived));
      if (wanted.length > 0) await writer.take(wanted);
      arrived += chunk.length;
    }
  } finally {
    // The file must not be written to once this has ended.
    await writer.end();
  }
  return arrived;
}
