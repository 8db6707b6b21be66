import type { RedisClient } from './redis-client.ts';
import { sha256 } from '../secrets.ts';
import { keys } from './keys.ts';

interface DiskRef {
  readonly accountId: string;
  readonly id: string;
}

/**
 * An index from a disk user's identifier to the disks that may have that user, because the access key
 * of a SigV4 client names no disk. An entry is written before its user and removed after it, so the
 * index may name too many disks; the disk's own record decides.
 */
export class DiskUserIndex {
  readonly #redis: RedisClient;
  readonly #region: string;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#region = region;
  }

  async add(disk: DiskRef, users: readonly { identifier: string }[]): Promise<void> {
    await Promise.all(
      users.map(({ identifier }) => this.#redis.sadd(this.#key(identifier), memberOf(disk))),
    );
  }

  async remove(disk: DiskRef, users: readonly { identifier: string }[]): Promise<void> {
    await Promise.all(
      users.map(({ identifier }) => this.#redis.srem(this.#key(identifier), memberOf(disk))),
    );
  }

  async find(identifier: string): Promise<DiskRef[]> {
    const members = await this.#redis.smembers(this.#key(identifier));
    return members.map((member) => {
      const [accountId = '', id = ''] = member.split(' ');
      return { accountId, id };
    });
  }

  #key(identifier: string): string {
    return keys.disksOfUser(this.#region, sha256(identifier));
  }
}

const memberOf = ({ accountId, id }: DiskRef): string => `${accountId} ${id}`;
