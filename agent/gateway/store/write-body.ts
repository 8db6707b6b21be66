import { native } from '../../native/native.ts';
import { syncData } from './file-calls.ts';

/** So much is written and hashed at a time, while as much again is read from the caller. */
const BATCH_BYTES = 1024 ** 2;
const BATCH_CHUNKS_MAX = 1024; // IOV_MAX of writev(2).
/** The kernel begins to write each window back early, so that the last sync has little to do. */
const WINDOW_BYTES = 16 * 1024 ** 2;

/**
 * Writes a body from the start of an empty file. Hashing, writing and reading go on side by side:
 * in a row they would take twice as long.
 * A long body is durable when it returns, so that publishing it takes no time.
 * @returns the state of the body's MD5; see files.c
 */
export async function writeBody(fd: number, body: AsyncIterable<Buffer>): Promise<Buffer> {
  const md5 = native.newMd5();
  let chunks: Buffer[] = [];
  let [batchBytes, writtenBytes, beganBytes] = [0, 0, 0];
  let batch: Promise<unknown> = Promise.resolve();
  let window: Promise<unknown> = Promise.resolve();
  const flush = async (): Promise<void> => {
    await batch;
    const work = [native.write(fd, writtenBytes, chunks), native.addToMd5(md5, chunks)];
    batch = Promise.all(work);
    batch.catch(() => undefined); // Seen by whoever waits for it next.
    writtenBytes += batchBytes;
    [chunks, batchBytes] = [[], 0];
  };
  const beginWriteBack = async (): Promise<void> => {
    await window;
    window = native.writeBack(fd, beganBytes, writtenBytes - beganBytes);
    window.catch(() => undefined);
    beganBytes = writtenBytes;
  };
  try {
    for await (const chunk of body) {
      chunks.push(chunk);
      batchBytes += chunk.length;
      if (batchBytes >= BATCH_BYTES || chunks.length === BATCH_CHUNKS_MAX) await flush();
      if (writtenBytes - beganBytes >= WINDOW_BYTES) await beginWriteBack();
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
