import { parseArgs } from 'node:util';
import { DiskLeases } from '../shared/directory/disk-leases.ts';
import { openRedis } from '../shared/directory/open-redis.ts';
import { unconfirmed } from '../shared/directory/replica-confirmation.ts';
import { newAccountId, newDiskId } from '../shared/ids.ts';
import { RedisGroup } from '../test/helpers/redis-sentinel.ts';
import { alternate, printComparison } from './statistics.ts';

const REGION = 'local-bench';
const TTL_MS = 60_000;

interface Measured {
  readonly leases: DiskLeases;
  readonly callers: number;
}

/** So many hosts that acquire and renew the lease of a disk each, at the same time. */
async function leaseAll({ leases, callers }: Measured): Promise<void> {
  const one = async (_: unknown, index: number): Promise<void> => {
    const disk = { accountId: newAccountId(), diskId: newDiskId() };
    const lease = await leases.acquire(disk, `host-${index}`, TTL_MS);
    if ('heldBy' in lease) throw new Error(`held by ${lease.heldBy}`);
    await leases.renew(lease, TTL_MS);
    await leases.release(lease);
  };
  await Promise.all(Array.from({ length: callers }, one));
}

/**
 * `npm run bench -- confirmation`: what it costs that a replica of Redis confirms a lease before it
 * counts (decision 0079): acquiring, renewing and releasing one, of which the first two are
 * confirmed. The baseline is the same group of servers without confirmation. Every server syncs
 * each write.
 */
export async function benchConfirmation(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: { rounds: { type: 'string', default: '200' } },
  });
  await using group = await RedisGroup.start();
  const settings = { redis: group.target, confirmingReplicas: 1, region: REGION };
  const { redis, confirmation, close } = await openRedis(settings, () => undefined);
  const confirmed = new DiskLeases(redis, REGION, confirmation);
  const plain = new DiskLeases(redis, REGION, unconfirmed);
  try {
    for (const callers of [1, 32]) {
      const times = await alternate(
        Number(values.rounds),
        () => leaseAll({ leases: confirmed, callers }),
        () => leaseAll({ leases: plain, callers }),
      );
      printComparison(
        `Leases of ${callers} at the same time`,
        times,
        { ours: 'confirmed by a replica', baseline: 'not confirmed' },
        { unit: 'ms', target: '3' },
      );
    }
  } finally {
    close();
  }
}
