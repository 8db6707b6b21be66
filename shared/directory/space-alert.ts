import type { RedisClient } from './redis-client.ts';
import { LIMITS } from '../limits.ts';
import { keys } from './keys.ts';

/**
 * The alert that the storage of Redis itself is nearly full. The control node that can see that
 * storage raises it; all control nodes read it.
 */
export class SpaceAlert {
  readonly #redis: RedisClient;

  constructor(redis: RedisClient) {
    this.#redis = redis;
  }

  /** Raises the alert, or renews it. It lapses after `LIMITS.directoryLowTtlMs`. */
  async raise(): Promise<void> {
    await this.#redis.set(keys.directoryLow(), '1', 'PX', LIMITS.directoryLowTtlMs);
  }

  async isRaised(): Promise<boolean> {
    return (await this.#redis.exists(keys.directoryLow())) === 1;
  }
}
