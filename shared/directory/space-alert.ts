import { Cluster } from 'ioredis';
import type { RedisClient } from './redis-client.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { keys } from './keys.ts';

/** The share of `maxmemory` above which Redis would soon refuse writes. */
const SHARE_OF_LIMIT = 0.8;
/**
 * Without `maxmemory`, that of the machine's memory: a rewrite of its file may double what it has.
 */
const SHARE_OF_MACHINE = 0.5;

/**
 * The alert that the storage of Redis itself is nearly full. The control node that can see that
 * storage raises it; all control nodes read it. Its memory all of them can see.
 */
export class SpaceAlert {
  readonly #redis: RedisClient;

  constructor(redis: RedisClient) {
    this.#redis = redis;
  }

  /** Raises the alert, or renews it. It lapses after `DIRECTORY_LIMITS.directoryLowTtlMs`. */
  async raise(): Promise<void> {
    await this.#redis.set(keys.directoryLow(), '1', 'PX', DIRECTORY_LIMITS.directoryLowTtlMs);
  }

  async isRaised(): Promise<boolean> {
    return (await this.#redis.exists(keys.directoryLow())) === 1;
  }

  /** Whether the memory of Redis, or of any primary of a cluster, is nearly full. */
  async isMemoryLow(): Promise<boolean> {
    const redis = this.#redis;
    const primaries = redis instanceof Cluster ? redis.nodes('master') : [redis];
    const answers = await Promise.all(primaries.map((primary) => primary.info('memory')));
    return answers.some(isNearlyFull);
  }
}

/** @param info as `INFO memory` has it (https://redis.io/docs/latest/commands/info/) */
function isNearlyFull(info: string): boolean {
  const bytesOf = (name: string): number =>
    Number(new RegExp(`^${name}:(\\d+)\\r?$`, 'mu').exec(info)?.[1] ?? 0);
  const limit = bytesOf('maxmemory');
  const machine = bytesOf('total_system_memory');
  const bound = limit > 0 ? limit * SHARE_OF_LIMIT : machine * SHARE_OF_MACHINE;
  return bound > 0 && bytesOf('used_memory') > bound;
}
