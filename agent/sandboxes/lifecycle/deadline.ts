import type { StorageWatch } from '../../../shared/storage-watch.ts';

/** Says whether the file system that sandboxes lie on hangs. */
export type StorageAnswers = Pick<StorageWatch, 'isSilent'>;

/**
 * Sets the deadline of work on a machine's files. While their storage hangs the work cannot go on,
 * and to kill the machine would only lose its memory: the work gets its whole time again.
 * @param overdue called once, when the time is up and the storage answers
 * @returns a function that lifts the deadline
 */
export function setDeadline(ms: number, storage: StorageAnswers, overdue: () => void): () => void {
  let timer: NodeJS.Timeout;
  const set = (): void => {
    timer = setTimeout(() => (storage.isSilent ? set() : overdue()), ms);
    timer.unref();
  };
  set();
  return () => clearTimeout(timer);
}
