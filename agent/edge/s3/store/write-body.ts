import { addToMd5, newMd5, syncData, writeChunks } from '../../../disks/disk-calls.ts';
import type { Checksum } from '../protocol/checksum.ts';
import { MiB } from '../../../../shared/units.ts';

/** How much is written and hashed at a time, while the next batch is read from the caller. */
const BATCH_BYTES = MiB;
const BATCH_CHUNKS_MAX = 1024; // IOV_MAX of writev(2).
/** Each window is synced while the next one arrives, so that the last sync is short. */
const WINDOW_BYTES = 32 * MiB;

/** Throws an S3Error unless a body's digests are the expected ones. */
export type VerifyDigests = (digests: {
  readonly md5: Buffer;
  readonly checksum: Buffer | undefined;
}) => void;

/**
 * Writes a body to an empty file. Reading, hashing and writing overlap; one after the other they
 * would take twice as long. A long body is durable when this returns, so that publishing it is
 * quick.
 * @param body whose chunks this takes over: the caller must not use them again
 * @param checksum taken of the body on the way
 * @returns the MD5 state of the body; see files.c
 */
export async function writeBody(
  fd: number,
  body: AsyncIterable<Buffer>,
  checksum?: Checksum,
): Promise<Buffer> {
  const md5 = newMd5();
  let chunks: Buffer[] = [];
  let [batchBytes, writtenBytes, beganBytes] = [0, 0, 0];
  let batch: Promise<unknown> = Promise.resolve();
  let window: Promise<unknown> = Promise.resolve();
  const flush = async (): Promise<void> => {
    await batch;
    const written = chunks;
    const work = [writeChunks(fd, writtenBytes, written), addToMd5(md5, written)];
    if (checksum !== undefined) work.push(checksum.add(written));
    batch = allEnded(work).then(() => freeAll(written));
    batch.catch(() => undefined); // The next await throws it.
    writtenBytes += batchBytes;
    [chunks, batchBytes] = [[], 0];
  };
  const beginSync = async (): Promise<void> => {
    await window;
    window = syncData(fd);
    window.catch(() => undefined);
    beganBytes = writtenBytes;
  };
  try {
    for await (const chunk of body) {
      chunks.push(chunk);
      batchBytes += chunk.length;
      if (batchBytes >= BATCH_BYTES || chunks.length === BATCH_CHUNKS_MAX) await flush();
      if (writtenBytes - beganBytes >= WINDOW_BYTES) await beginSync();
    }
    await flush();
    await batch;
    await window;
    if (writtenBytes > WINDOW_BYTES) await syncData(fd);
    return md5;
  } finally {
    // Once this returns, the descriptor may be closed and its number reused.
    await Promise.allSettled([batch, window]);
  }
}

/**
 * Throws the first failure once all of the work has ended: what has not failed still uses the file.
 */
async function allEnded(work: readonly Promise<unknown>[]): Promise<void> {
  await Promise.allSettled(work);
  await Promise.all(work);
}

/**
 * Frees the memory of chunks at once. Left to the garbage collector, every 64 MiB of them triggers
 * a collection of V8's whole heap, which took a third of the time of a put.
 */
function freeAll(chunks: readonly Buffer[]): void {
  for (const { buffer, length } of chunks) {
    const isAlone = buffer.byteLength === length; // No part of a pool.
    if (isAlone && buffer instanceof ArrayBuffer) buffer.transfer(0);
  }
}
