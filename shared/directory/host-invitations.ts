import type { RedisClient } from './redis-client.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { sha256 } from '../secrets.ts';
import { keys } from './keys.ts';
import { Script } from './script.ts';

// KEYS invitation. ARGV hash of the nonce. The first nonce is the only one.
const claim = new Script(`
  local sealed = redis.call('HGET', KEYS[1], 'sealed')
  if not sealed then return 'unknown' end
  redis.call('HSETNX', KEYS[1], 'nonce', ARGV[1])
  if redis.call('HGET', KEYS[1], 'nonce') ~= ARGV[1] then return 'used' end
  return { sealed }
`);
// KEYS invitation. ARGV sealed, milliseconds to live
const add = new Script(`
  redis.call('HSET', KEYS[1], 'sealed', ARGV[1])
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
`);
// KEYS attempts. ARGV milliseconds to live
const count = new Script(`
  local tried = redis.call('INCR', KEYS[1])
  if tried == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
  return tried
`);

/** Invitations of hosts, by the hash of their proof; each is for one host and ends by itself. */
export class HostInvitations {
  readonly #redis: RedisClient;
  readonly #region: string;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#region = region;
  }

  /** @param sealed what the host gets, which only the token opens */
  async add(id: string, sealed: string, ttlMs: number): Promise<void> {
    await add.run(this.#redis, [keys.hostInvitation(this.#region, id)], [sealed, ttlMs]);
  }

  /**
   * Uses an invitation. The host that used it gets the same again, because an answer may be lost.
   * @param nonce what the host has made for this use
   * @returns the sealed text; `unknown` when there is none any more, `used` when another host did
   */
  async claim(
    id: string,
    nonce: string,
  ): Promise<{ readonly sealed: string } | 'unknown' | 'used'> {
    const key = keys.hostInvitation(this.#region, id);
    const result = await claim.run(this.#redis, [key], [sha256(nonce)]);
    if (result === 'unknown' || result === 'used') return result;
    return { sealed: String((result as unknown[])[0]) };
  }

  /** Counts an attempt to join. @returns false when there were too many from there */
  async mayTry(address: string): Promise<boolean> {
    const key = keys.joinAttempts(this.#region, address);
    const tried = await count.run(this.#redis, [key], [DIRECTORY_LIMITS.joinAttemptsWithinMs]);
    return Number(tried) <= DIRECTORY_LIMITS.joinAttemptsPerAddressMax;
  }
}
