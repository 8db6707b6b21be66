import { DIRECTORY_LIMITS } from './limits.ts';
import { RememberedReads } from '../remembered-reads.ts';
import type { RedisClient } from './redis-client.ts';
import { keys } from './keys.ts';

/**
 * Sessions of the console that ended before their time. A session is a sealed cookie, of which
 * control keeps nothing, so only the ends are stored, until the cookie would have expired.
 */
export class EndedSessions {
  readonly #redis: RedisClient;
  /** An end on another node is noticed when the time of a read is over. */
  readonly #reads = new RememberedReads<boolean>({
    forMs: DIRECTORY_LIMITS.apiKeyRememberedMs,
    max: DIRECTORY_LIMITS.apiKeysRememberedMax,
  });

  constructor(redis: RedisClient) {
    this.#redis = redis;
  }

  /** @param expiresAt when the session would have ended, in milliseconds since the epoch */
  async add(id: string, expiresAt: number): Promise<void> {
    const leftMs = Math.max(1, expiresAt - Date.now());
    await this.#redis.set(keys.endedSession(id), '1', 'PX', leftMs);
    this.#reads.forget(id);
  }

  async has(id: string): Promise<boolean> {
    return this.#reads.read(
      id,
      async () => (await this.#redis.exists(keys.endedSession(id))) === 1,
    );
  }
}
