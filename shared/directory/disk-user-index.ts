import type { RedisClient } from './redis-client.ts';
import { sha256 } from '../secrets.ts';
import { keys } from './keys.ts';

/** A disk, and its account. */
export interface DiskRef {
  readonly accountId: string;
  readonly id: string;
}

interface IndexedUser {
  readonly type: string;
  readonly identifier: string;
}

/**
 * An index from the identifier of a disk's token user to the disks that may have that user, because
 * the access key of a SigV4 client names no disk. An entry is written before its user and removed
 * after it, so the index may name too many disks; the disk's own record decides. Other users do not
 * sign, and are not in it: anybody may name one like another's token user.
 */
export class DiskUserIndex {
  readonly #redis: RedisClient;
  readonly #region: string;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#region = region;
  }

  async add(disk: DiskRef, users: readonly IndexedUser[]): Promise<void> {
    await Promise.all(
      users
        .filter(hasToken)
        .map(({ identifier }) => this.#redis.sadd(this.#key(identifier), memberOf(disk))),
    );
  }

  async remove(disk: DiskRef, users: readonly Pick<IndexedUser, 'identifier'>[]): Promise<void> {
    // Users of every type: older versions indexed them all.
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

const hasToken = ({ type }: IndexedUser): boolean => type === 'token';

const memberOf = ({ accountId, id }: DiskRef): string => `${accountId} ${id}`;
