import { close } from 'node:fs';
import { promisify } from 'node:util';
import { native } from '../native/native.ts';

const closeFile = promisify(close);

/** A locked file; disposing of it ends the lock. */
export type FileLock = AsyncDisposable;

/**
 * Locks a file, which is made if it is missing.
 * @throws Error EAGAIN while somebody else holds the lock; ESTALE when the path names another file
 *   by now
 */
export async function takeLock(path: string): Promise<FileLock> {
  const fd = await native.takeLock(path);
  return {
    // On a thread: on storage that hangs, closing a file hangs, too. An error leaves none open.
    [Symbol.asyncDispose]: () => closeFile(fd).catch(() => undefined),
  };
}
