import { poolThreads } from '../../disks/disk-threads.ts';
import { FairTurns } from '../../system/queues/fair-turns.ts';

/*
 * A call on the storage that hosts share for their sandboxes occupies a thread of libuv's pool
 * until it returns, and every command in a sandbox makes some. While that storage hangs they would
 * occupy all threads, and with them the journal and every disk of the host. So they have few
 * threads of their own: half of what calls on disks leave to the agent (disk-threads.ts).
 */

const count = Math.ceil(poolThreads / 8);
const turns = new FairTurns({
  count,
  perAccountMax: count,
  refusal: 'the host is busy; try again',
});

/** How calls on the file system that sandboxes lie on are made, one inside of none other. */
export type OnThread = <T>(call: () => Promise<T>) => Promise<T>;

/** Makes calls, one after the other, on a thread of those for shared storage. */
export async function onSharedThread<T>(call: () => Promise<T>): Promise<T> {
  const turn = await turns.acquire('', undefined);
  try {
    return await call();
  } finally {
    turn.release();
  }
}

/** For sandboxes that lie in the host's data directory. */
export const onAnyThread: OnThread = (call) => call();
