import { addToMd5, newMd5, syncData, writeChunks } from '../../disks/disk-calls.ts';
import { MiB } from '../../../shared/units.ts';

/** So much is written and hashed at a time, while as much again is read from the caller. */
const BATCH_BYTES = MiB;
const BATCH_CHUNKS_MAX = 1024; // IOV_MAX of writev(2).
/** Each window is synced while the next one comes, so that the last sync has little to do. */
const WINDOW_BYTES = 32 * MiB;

/**
 * Writes a body from the start of an empty file. Hashing, writing and reading go on side by side:
 * in a row they would take twice as long.
 * A long body is durable when it returns, so that publishing it takes no time.
 * @param body whose chunks are taken over: nobody may use one again
 * @returns the state of the body's MD5; see files.c
 */
export async function writeBody(fd: number, body: AsyncIterable<Buffer>): Promise<Buffer> {
  const md5 = newMd5();
  let chunks: Buffer[] = [];
  let [batchBytes, writtenBytes, beganBytes] = [0, 0, 0];
  let batch: Promise<unknown> = Promise.resolve();
  let window: Promise<unknown> = Promise.resolve();
  const flush = async (): Promise<void> => {
    await batch;
    const written = chunks;
    const work = [writeChunks(fd, writtenBytes, written), addToMd5(md5, written)];
    batch = Promise.all(work).then(() => freeAll(written));
    batch.catch(() => undefined); // Seen by whoever waits for it next.
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
    // The file may be closed and its number be another's as soon as this returns.
    await Promise.allSettled([batch, window]);
  }
}

/**
 * Gives the memory of chunks back now. Left to the collector, each 64 MiB of them makes V8 look
 * through its whole heap, which cost a put a third of its time.
 */
function freeAll(chunks: readonly Buffer[]): void {
  for (const { buffer, length } of chunks) {
    const isAlone = buffer.byteLength === length; // No part of a pool.
    if (isAlone && buffer instanceof ArrayBuffer) buffer.transfer(0);
  }
}
