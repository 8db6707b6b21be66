import { fdatasync, writev } from 'node:fs';
import type { Readable } from 'node:stream';
import { promisify } from 'node:util';
import { DISK_LIMITS } from '../limits.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import { MiB } from '../../../shared/units.ts';
import { BucketError } from './bucket.ts';

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

/** How slowly a body may arrive: so many bytes of it within each such time. */
interface Pace {
  readonly bytes: number;
  readonly ms: number;
}

const PACE: Pace = { bytes: DISK_LIMITS.bucketPaceBytes, ms: DISK_LIMITS.bucketPaceMs };

/** Passes on what arrives, as long as enough does. Time for which nobody asks does not count. */
async function* inPace(body: Readable, { bytes, ms }: Pace): AsyncGenerator<Buffer> {
  const chunks: AsyncIterator<Buffer, undefined> = body[Symbol.asyncIterator]();
  let [leftBytes, leftMs] = [bytes, ms];
  try {
    for (;;) {
      const askedAt = performance.now();
      const arrival = chunks.next();
      if (!(await settledWithin(arrival, leftMs))) {
        throw new BucketError('away', 'the storage sends the object too slowly');
      }
      const { done, value } = await arrival;
      if (done === true) return;
      leftBytes -= value.length;
      leftMs = Math.max(0, leftMs - (performance.now() - askedAt));
      if (leftBytes <= 0) [leftBytes, leftMs] = [bytes, ms];
      yield value;
    }
  } finally {
    body.destroy();
  }
}

interface Expected {
  readonly sizeBytes: number;
  /** How many bytes of it are written, if not all. */
  readonly cutAt?: number | undefined;
}

/**
 * Writes what arrives to the file, from its beginning. It is durable after the caller's fdatasync.
 * @throws BucketError when more or less arrives than expected, or too little at a time
 */
export async function writeStreamTo(
  fd: number,
  body: Readable,
  { sizeBytes, cutAt = sizeBytes }: Expected,
  pace = PACE,
): Promise<void> {
  const writer = new BatchWriter(fd);
  // Bytes beyond a cut are not waited for, however many the storage sends.
  const isCut = cutAt < sizeBytes;
  let arrived = 0;
  try {
    for await (const chunk of inPace(body, pace)) {
      const wanted = chunk.subarray(0, Math.max(0, cutAt - arrived));
      arrived += chunk.length;
      if (arrived > sizeBytes) break;
      if (wanted.length > 0) await writer.take(wanted);
      if (isCut && arrived >= cutAt) return;
    }
  } finally {
    // The file must not be written to once this has ended.
    await writer.end();
  }
  if (arrived !== sizeBytes) {
    const sent = arrived > sizeBytes ? `more than the ${sizeBytes}` : `${arrived} of ${sizeBytes}`;
    throw new BucketError('away', `the storage sent ${sent} bytes`);
  }
}
