import { AsyncLocalStorage } from 'node:async_hooks';
import { LIMITS } from '../../shared/limits.ts';
import { AppError } from '../../shared/errors.ts';
import { FairSlots, type Slot } from '../queues/fair-slots.ts';

/*
 * Who waits for the file system of a disk holds a thread meanwhile, for as long as the disk's owner
 * makes it take: a directory of a million names, a sync on storage that stands still. All such calls
 * run on libuv's pool, like those of the agent's own journal; so each of them has to be let onto a
 * thread, and what owners hold of the pool is bounded, for each of them and for all together
 * (decision 0027).
 */

/** libuv's own default (docs.libuv.org/en/v1.x/threadpool.html). */
const LIBUV_THREADS_DEFAULT = 4;

/** Threads of this process's pool. */
export const poolThreads = Number(process.env['UV_THREADPOOL_SIZE']) || LIBUV_THREADS_DEFAULT;

/** A quarter stays for the agent itself: journal, names of hosts, mounts. */
const threads = new FairSlots({
  count: poolThreads - Math.ceil(poolThreads / 4),
  perAccountMax: Math.min(LIMITS.diskThreadsPerAccountMax, Math.ceil(poolThreads / 2)),
  refusal: 'the host is busy; try again',
});

interface DiskWork {
  readonly accountId: string;
  readonly signal: AbortSignal | undefined;
}

/** The agent's own work on disks: it has a share like an account. */
const ofTheAgent: DiskWork = { accountId: '', signal: undefined };

const current = new AsyncLocalStorage<DiskWork>();

/**
 * Does work on disks in the name of an account: every call of it on a disk takes a thread of the
 * account's share, and none begins once the signal is aborted.
 */
export function onBehalfOf<T>(
  accountId: string,
  signal: AbortSignal | undefined,
  work: () => Promise<T>,
): Promise<T> {
  return current.run({ accountId, signal }, work);
}

/** For what must be put in order whatever became of the request: the signal does not end it. */
export function toItsEnd<T>(work: () => Promise<T>): Promise<T> {
  const { accountId } = current.getStore() ?? ofTheAgent;
  return current.run({ accountId, signal: undefined }, work);
}

/**
 * One call of the system on a disk. Work that can take long must be cut into several.
 * @throws the signal's reason; AppError `no_capacity` when the account's threads are all held for
 *   too long
 */
export async function onDiskThread<T>(call: () => Promise<T>): Promise<T> {
  const { accountId, signal } = current.getStore() ?? ofTheAgent;
  signal?.throwIfAborted();
  const thread = threads.tryAcquire(accountId) ?? (await turnOf(accountId, signal));
  try {
    return await call();
  } finally {
    thread.release();
  }
}

const never = new AbortController().signal;

async function turnOf(accountId: string, signal: AbortSignal | undefined): Promise<Slot> {
  if (signal === undefined) return threads.acquire(accountId, never);
  const late = new AbortController();
  const timer = setTimeout(() => {
    late.abort(new AppError('no_capacity', 'the disks of the account do not keep up; try again'));
  }, LIMITS.diskThreadWaitMsMax);
  try {
    return await threads.acquire(accountId, AbortSignal.any([signal, late.signal]));
  } finally {
    clearTimeout(timer);
  }
}
