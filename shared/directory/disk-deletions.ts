import type { RedisClient } from './redis-client.ts';
import { keys } from './keys.ts';

interface DiskRef {
  readonly accountId: string;
  readonly id: string;
}

/** How long after the note a disk may not be `deleting` yet. */
const BEGINS_WITHIN_MS = 60_000;

const memberOf = ({ accountId, id }: DiskRef): string => `${accountId} ${id}`;

/**
 * The disks of a region whose deletion has begun and not ended, for the hosts that finish it. A
 * disk is noted before its record says `deleting`, so the record decides.
 */
export class DiskDeletions {
  readonly #redis: RedisClient;
  readonly #key: string;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#key = keys.diskDeletions(region);
  }

  async note(disk: DiskRef): Promise<void> {
    await this.#redis.zadd(this.#key, Date.now(), memberOf(disk));
  }

  async forget(disk: DiskRef): Promise<void> {
    await this.#redis.zrem(this.#key, memberOf(disk));
  }

  /** Forgets a deletion that was noted, but has not begun since. */
  async forgetIfOld(disk: DiskRef): Promise<void> {
    const notedAt = await this.#redis.zscore(this.#key, memberOf(disk));
    if (Number(notedAt) + BEGINS_WITHIN_MS < Date.now()) await this.forget(disk);
  }

  async list(): Promise<DiskRef[]> {
    const members = await this.#redis.zrange(this.#key, '0', '-1');
    return members.map((member) => {
      const [accountId = '', id = ''] = member.split(' ');
      return { accountId, id };
    });
  }
}
