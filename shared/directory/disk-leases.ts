import type { Redis } from 'ioredis';
import { keys } from './keys.ts';
import { Script } from './script.ts';

/** A host's exclusive right to have a disk attached. `epoch` grows each time it is acquired. */
export interface DiskLease {
  readonly accountId: string;
  readonly diskId: string;
  readonly hostId: string;
  readonly epoch: number;
}

// The value is "<host> <epoch>". A host that acquires its own lease again (its agent was restarted)
// gets a new epoch, so that nothing the former agent left can renew or release it.
const acquire = new Script(`
  local current = redis.call('GET', KEYS[1])
  if current and string.match(current, '^%S+') ~= ARGV[1] then return current end
  local epoch = redis.call('INCR', KEYS[2])
  local value = ARGV[1] .. ' ' .. epoch
  redis.call('SET', KEYS[1], value, 'PX', ARGV[2])
  return value
`);
const renew = new Script(`
  if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
`);
const release = new Script(`
  if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
  redis.call('DEL', KEYS[1])
  return 1
`);

const valueOf = (lease: DiskLease): string => `${lease.hostId} ${lease.epoch}`;

/** Which host is the handler of each disk (`fsHandlerStatus`): a fenced lease, to be renewed. */
export class DiskLeases {
  readonly #redis: Redis;
  readonly #region: string;

  constructor(redis: Redis, region: string) {
    this.#redis = redis;
    this.#region = region;
  }

  /** @returns the lease, or the host that has it */
  async acquire(
    disk: { accountId: string; diskId: string },
    hostId: string,
    ttlMs: number,
  ): Promise<DiskLease | { heldBy: string }> {
    const value = await acquire.run(
      this.#redis,
      [this.#leaseKey(disk), keys.diskEpoch(this.#region, disk.accountId, disk.diskId)],
      [hostId, ttlMs],
    );
    const [holder = '', epoch = ''] = String(value).split(' ');
    if (holder !== hostId) return { heldBy: holder };
    return { accountId: disk.accountId, diskId: disk.diskId, hostId, epoch: Number(epoch) };
  }

  /** @returns false when the lease is lost */
  async renew(lease: DiskLease, ttlMs: number): Promise<boolean> {
    return (await renew.run(this.#redis, [this.#leaseKey(lease)], [valueOf(lease), ttlMs])) === 1;
  }

  async release(lease: DiskLease): Promise<void> {
    await release.run(this.#redis, [this.#leaseKey(lease)], [valueOf(lease)]);
  }

  #leaseKey(disk: { accountId: string; diskId: string }): string {
    return keys.diskLease(this.#region, disk.accountId, disk.diskId);
  }
}

/** The host named by a lease's stored value. */
export const leaseHolder = (value: string | null): string | undefined =>
  value === null ? undefined : value.split(' ')[0];
