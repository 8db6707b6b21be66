import type { Redis } from 'ioredis';
import { LIMITS } from '../limits.ts';
import { keys } from './keys.ts';

/** Whether the directory's own storage is nearly full: said by whoever sees it, read by all. */
export class Room {
  readonly #redis: Redis;

  constructor(redis: Redis) {
    this.#redis = redis;
  }

  /** Says that there is little room; it holds for `LIMITS.directoryLowTtlMs`. */
  async sayLow(): Promise<void> {
    await this.#redis.set(keys.directoryLow(), '1', 'PX', LIMITS.directoryLowTtlMs);
  }

  async isLow(): Promise<boolean> {
    return (await this.#redis.exists(keys.directoryLow())) === 1;
  }
}
