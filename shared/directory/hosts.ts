import type { Redis } from 'ioredis';
import { LIMITS } from '../limits.ts';
import { keys } from './keys.ts';

/** The internal URLs at which the hosts of a region reach each other. */
export class Hosts {
  readonly #redis: Redis;
  readonly #key: string;

  constructor(redis: Redis, region: string) {
    this.#redis = redis;
    this.#key = keys.hosts(region);
  }

  /** @param internalUrl URL of the host's internal port */
  async announce(hostId: string, internalUrl: string): Promise<void> {
    await this.#redis.hset(this.#key, hostId, `${Date.now()} ${internalUrl}`);
  }

  async withdraw(hostId: string): Promise<void> {
    await this.#redis.hdel(this.#key, hostId);
  }

  /** The internal URLs of all hosts of the region, those that are away included. */
  async urls(): Promise<string[]> {
    const entries = Object.values(await this.#redis.hgetall(this.#key));
    return entries.map((entry) => entry.split(' ')[1] ?? '').filter((url) => URL.canParse(url));
  }

  /** The internal URL of a host that announced itself lately, or undefined. */
  async find(hostId: string): Promise<string | undefined> {
    const [seenAt = '', internalUrl] = ((await this.#redis.hget(this.#key, hostId)) ?? '').split(
      ' ',
    );
    return Number(seenAt) + LIMITS.hostTtlMs > Date.now() ? internalUrl : undefined;
  }
}
