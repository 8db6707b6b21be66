import { AsyncLocalStorage } from 'node:async_hooks';
import { DISK_LIMITS } from './limits.ts';
import { FairTurns } from '../system/queues/fair-turns.ts';
import { chosenPoolThreads } from '../system/environment.ts';

/*
 * A call on a disk's file system occupies a thread until it returns, and the disk's owner decides
 * how long that takes: a directory of a million names, a sync on storage that hangs. All such calls
 * share libuv's pool with the agent's own journal. Each call therefore needs permission to use a
 * thread, and the threads that accounts hold are bounded, per account and in total
 * (docs/decisions/0026).
 */

/** libuv's own default (docs.libuv.org/en/v1.x/threadpool.html). */
const LIBUV_THREADS_DEFAULT = 4;

/** The size of this process's thread pool. */
export const poolThreads = chosenPoolThreads ?? LIBUV_THREADS_DEFAULT;

/** A quarter of the pool is reserved for the agent itself: journal, DNS, mounts. */
const threads = new FairTurns({
  count: poolThreads - Math.ceil(poolThreads / 4),
  perAccountMax: Math.min(DISK_LIMITS.diskThreadsPerAccountMax, Math.ceil(poolThreads / 2)),
  refusal: 'too many calls on disks of the account are waiting; try again',
});

interface DiskWork {
  readonly accountId: string;
  readonly signal: AbortSignal | undefined;
}

/** The agent's own work on disks has a share of its own, like an account. */
const ofTheAgent: DiskWork = { accountId: '', signal: undefined };

const current = new AsyncLocalStorage<DiskWork>();

/**
 * Does work on disks on behalf of an account: every disk call in it takes a thread of the account's
 * share, and none starts once the signal is aborted.
 */
export function onBehalfOf<T>(
  accountId: string,
  signal: AbortSignal | undefined,
  work: () => Promise<T>,
): Promise<T> {
  return current.run({ accountId, signal }, work);
}

/** Runs clean-up that must finish even though its request has ended: the signal is ignored. */
export function toItsEnd<T>(work: () => Promise<T>): Promise<T> {
  const { accountId } = current.getStore() ?? ofTheAgent;
  return current.run({ accountId, signal: undefined }, work);
}

/**
 * Makes one system call on a disk. Long work must be split into several calls.
 * @throws the signal's reason; AppError `no_capacity` when the account's threads are all held for
 *   too long
 */
export async function onDiskThread<T>(call: () => Promise<T>): Promise<T> {
  const { accountId, signal } = current.getStore() ?? ofTheAgent;
  signal?.throwIfAborted();
  // Work that must be done to its end waits as long as it takes.
  const timeoutMs = signal === undefined ? undefined : DISK_LIMITS.diskThreadWaitMsMax;
  const thread =
    threads.tryAcquire(accountId) ?? (await threads.acquire(accountId, signal, timeoutMs));
  try {
    return await call();
  } finally {
    thread.release();
  }
}
