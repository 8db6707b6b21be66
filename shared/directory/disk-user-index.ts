import type { Redis } from 'ioredis';
import { sha256 } from '../secrets.ts';
import { keys } from './keys.ts';

interface DiskRef {
  readonly accountId: string;
  readonly id: string;
}

/**
 * Which disks may have a user with a given identifier: what a SigV4 client sends as its access key
 * names no disk. Only an index, written before a user and removed after it; it may name a disk
 * too many, and the disk's own record decides.
 */
export class DiskUserIndex {
  readonly #redis: Redis;
  readonly #region: string;

  constructor(redis: Redis, region: string) {
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
