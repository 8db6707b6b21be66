import type { RedisClient } from './redis-client.ts';
import { AppError } from '../errors.ts';
import { keys } from './keys.ts';
import type { ReplicaConfirmation } from './replica-confirmation.ts';
import { Script } from './script.ts';

/** A host's exclusive right to have a disk attached. `epoch` grows each time it is acquired. */
export interface DiskLease {
  readonly accountId: string;
  readonly diskId: string;
  readonly hostId: string;
  readonly epoch: number;
}

export interface AcquiredLease extends DiskLease {
  /**
   * Hosts whose lease ended without a release, so that they may still have the image attached: they
   * died, were cut off, or are frozen.
   */
  readonly formerHosts: readonly string[];
}

// The value is "<host> <epoch>", and "<host> <epoch> held" while a sandbox of the host mounts the
// disk: a held lease does not expire. A host that acquires its own lease again (its agent was
// restarted) gets a new epoch, so that nothing the former agent left can renew or release it; the
// hold stays. KEYS lease, epoch, attached; ARGV host, time, and whether only a lease that the host
// has or had is wanted.
const acquire = new Script(`
  local current = redis.call('GET', KEYS[1])
  if current and string.match(current, '^%S+') ~= ARGV[1] then return {current} end
  if ARGV[3] == 'former' and not current and redis.call('SISMEMBER', KEYS[3], ARGV[1]) == 0 then
    return {''}
  end
  local epoch = redis.call('INCR', KEYS[2])
  local value = ARGV[1] .. ' ' .. epoch
  if current and string.match(current, ' held$') then
    redis.call('SET', KEYS[1], value .. ' held')
  else
    redis.call('SET', KEYS[1], value, 'PX', ARGV[2])
  end
  local attached = redis.call('SMEMBERS', KEYS[3])
  redis.call('SADD', KEYS[3], ARGV[1])
  return {value, unpack(attached)}
`);
const renew = new Script(`
  local current = redis.call('GET', KEYS[1])
  if current == ARGV[1] .. ' held' then return 1 end
  if current ~= ARGV[1] then return 0 end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
`);
// KEYS lease, attached; ARGV value of the lease, host. The host has the image detached, also when
// its lease ended before; but a later agent of the same host may have attached it again.
const release = new Script(`
  local current = redis.call('GET', KEYS[1])
  local isOurs = current == ARGV[1] or current == ARGV[1] .. ' held'
  if current and not isOurs and string.match(current, '^%S+') == ARGV[2] then return 0 end
  redis.call('SREM', KEYS[2], ARGV[2])
  if isOurs then redis.call('DEL', KEYS[1]) end
  return 1
`);
// KEYS lease, attached; ARGV value of the lease, host.
const recordAlone = new Script(`
  local current = redis.call('GET', KEYS[1])
  if current ~= ARGV[1] and current ~= ARGV[1] .. ' held' then return 0 end
  redis.call('DEL', KEYS[2])
  redis.call('SADD', KEYS[2], ARGV[2])
  return 1
`);
// KEYS lease, disk. A lease that the directory has lost is taken again, with its epoch.
const hold = new Script(`
  local current = redis.call('GET', KEYS[1])
  if current and current ~= ARGV[1] and current ~= ARGV[1] .. ' held' then return 'lost' end
  if ARGV[2] == 'new' then
    if not current then return 'lost' end
    if redis.call('HGET', KEYS[2], 'status') ~= 'available' then return 'gone' end
  end
  redis.call('SET', KEYS[1], ARGV[1] .. ' held')
  return 'held'
`);
const unhold = new Script(`
  if redis.call('GET', KEYS[1]) ~= ARGV[1] .. ' held' then return 0 end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
`);

// ARGV host. Only the hold that the operator saw: not one that another host has got meanwhile.
const breakHold = new Script(`
  local current = redis.call('GET', KEYS[1])
  if not current or not string.match(current, ' held$') then return 0 end
  if string.match(current, '^%S+') ~= ARGV[1] then return 0 end
  redis.call('DEL', KEYS[1])
  return 1
`);

/** Nothing has begun yet, whatever becomes of the lease. */
function refuse(cause: unknown): never {
  if (!(cause instanceof AppError)) throw cause;
  const message = 'no replica of Redis has confirmed the lease on the disk; try again';
  throw new AppError('unavailable', message, { cause });
}

const valueOf = (lease: DiskLease): string => `${lease.hostId} ${lease.epoch}`;

/**
 * Which host holds the lease of each disk (`fsHandlerStatus`): a fenced lease, to be renewed. A
 * lease is had, renewed or held once replicas of Redis have it too, if they are to confirm it: a
 * failover would otherwise let another host acquire it.
 */
export class DiskLeases {
  readonly #redis: RedisClient;
  readonly #region: string;
  readonly #confirmation: ReplicaConfirmation;

  constructor(redis: RedisClient, region: string, confirmation: ReplicaConfirmation) {
    this.#redis = redis;
    this.#region = region;
    this.#confirmation = confirmation;
  }

  /**
   * @returns the lease, or the host that has it
   * @throws AppError `unavailable` when no replica confirms it: it is then left to expire
   */
  acquire(
    disk: { accountId: string; diskId: string },
    hostId: string,
    ttlMs: number,
  ): Promise<AcquiredLease | { heldBy: string }> {
    return this.#acquire(disk, hostId, [ttlMs, 'any']);
  }

  /**
   * Acquires a lease once more that the host has, or that has ended without its release. A free
   * lease is not touched: another host may be about to acquire it.
   * @returns undefined when the host has nothing to release
   * @throws AppError as {@link acquire}
   */
  async acquireFormer(
    disk: { accountId: string; diskId: string },
    hostId: string,
    ttlMs: number,
  ): Promise<AcquiredLease | undefined> {
    const lease = await this.#acquire(disk, hostId, [ttlMs, 'former']);
    return 'heldBy' in lease ? undefined : lease;
  }

  async #acquire(
    disk: { accountId: string; diskId: string },
    hostId: string,
    args: readonly [ttlMs: number, kind: 'any' | 'former'],
  ): Promise<AcquiredLease | { heldBy: string }> {
    const { accountId, diskId } = disk;
    const epochKey = keys.diskEpoch(this.#region, accountId, diskId);
    const threeKeys = [this.#leaseKey(disk), epochKey, this.#attachedKey(disk)];
    const [value = '', ...attached] = await this.#confirmation
      .confirmed(
        async () => (await acquire.run(this.#redis, threeKeys, [hostId, ...args])) as string[],
        ([current = '']) => current.startsWith(`${hostId} `),
      )
      .catch(refuse);
    const [holder = '', epoch = ''] = value.split(' ');
    if (holder !== hostId) return { heldBy: holder };
    const formerHosts = attached.filter((host) => host !== hostId);
    return { accountId, diskId, hostId, epoch: Number(epoch), formerHosts };
  }

  /**
   * @returns false when the lease is lost
   * @throws AppError `outcome_unknown` when no replica confirms it: the former expiry counts
   */
  async renew(lease: DiskLease, ttlMs: number): Promise<boolean> {
    return this.#confirmation.confirmed(
      async () =>
        (await renew.run(this.#redis, [this.#leaseKey(lease)], [valueOf(lease), ttlMs])) === 1,
      (isRenewed) => isRenewed,
    );
  }

  /** Only for a host that has the image detached, whatever has become of the lease. */
  async release(lease: DiskLease): Promise<void> {
    const both = [this.#leaseKey(lease), this.#attachedKey(lease)];
    await release.run(this.#redis, both, [valueOf(lease), lease.hostId]);
  }

  /** Forgets {@link AcquiredLease.formerHosts}: none of them has the image attached any more. */
  async recordAlone(lease: DiskLease): Promise<void> {
    const both = [this.#leaseKey(lease), this.#attachedKey(lease)];
    await recordAlone.run(this.#redis, both, [valueOf(lease), lease.hostId]);
  }

  /**
   * Keeps the lease from expiring, because a sandbox begins to use the disk.
   * @returns `lost` when the lease is another's or expired, `gone` when the disk is being deleted
   */
  async hold(lease: DiskLease): Promise<'held' | 'lost' | 'gone'> {
    return this.#hold(lease, 'new');
  }

  /**
   * The same for a disk that is held already, also when the directory has lost the lease meanwhile.
   * @returns false when another host has taken it
   */
  async holdAgain(lease: DiskLease): Promise<boolean> {
    return (await this.#hold(lease, 'again')) === 'held';
  }

  /** Lets the lease expire again unless it is renewed. */
  async unhold(lease: DiskLease, ttlMs: number): Promise<void> {
    await unhold.run(this.#redis, [this.#leaseKey(lease)], [valueOf(lease), ttlMs]);
  }

  /**
   * Frees a held disk whose host will not come back. Two hosts that use one disk destroy its file
   * system: only for an operator who knows that the former host is off.
   * @returns false when the host does not hold it (any more)
   */
  async breakHold(disk: { accountId: string; diskId: string }, hostId: string): Promise<boolean> {
    return (await breakHold.run(this.#redis, [this.#leaseKey(disk)], [hostId])) === 1;
  }

  async #hold(lease: DiskLease, kind: 'new' | 'again'): Promise<'held' | 'lost' | 'gone'> {
    const disk = keys.disk(this.#region, lease.accountId, lease.diskId);
    const both = [this.#leaseKey(lease), disk];
    const result = await this.#confirmation.confirmed(
      () => hold.run(this.#redis, both, [valueOf(lease), kind]),
      (outcome) => outcome === 'held',
    );
    return result === 'held' || result === 'gone' ? result : 'lost';
  }

  #leaseKey(disk: { accountId: string; diskId: string }): string {
    return keys.diskLease(this.#region, disk.accountId, disk.diskId);
  }

  #attachedKey(disk: { accountId: string; diskId: string }): string {
    return keys.diskAttached(this.#region, disk.accountId, disk.diskId);
  }
}

/** The host named by a lease's stored value. */
export const leaseHolder = (value: string | null): string | undefined =>
  value === null ? undefined : value.split(' ')[0];

/** Whether a sandbox of the lease's host mounts the disk. */
export const isHeldLease = (value: string | null): boolean => value?.endsWith(' held') === true;
