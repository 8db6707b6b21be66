import type { Redis } from 'ioredis';
import { keys } from './keys.ts';
import { Script } from './script.ts';

/** What is known of the first request that carried a key. */
export interface KeyedRequest {
  /** The request that has the key; it alone may finish or give it up. */
  readonly owner: string;
  /** Tells another body or path under the same key apart. */
  readonly fingerprint: string;
  /** Until when the owner may still be at work, in milliseconds since the epoch. */
  readonly runningUntil: number;
  /** The sealed answer, once there is one. */
  readonly answer?: string;
}

const claim = new Script(`
  local present = redis.call('GET', KEYS[1])
  if present then return present end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return false
`);
// ARGV owner, new value or '' to remove, time to live
const settle = new Script(`
  local present = redis.call('GET', KEYS[1])
  if not present or cjson.decode(present).owner ~= ARGV[1] then return 0 end
  if ARGV[2] == '' then redis.call('DEL', KEYS[1])
  else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
  return 1
`);

const parse = (text: string): KeyedRequest => JSON.parse(text) as KeyedRequest;

/** `Idempotency-Key`s of an account, each with the first request that carried it. */
export class IdempotencyKeys {
  readonly #redis: Redis;

  constructor(redis: Redis) {
    this.#redis = redis;
  }

  /** Claims the key, or returns the request that has it. */
  async claim(
    accountId: string,
    keyHash: string,
    request: KeyedRequest,
    ttlMs: number,
  ): Promise<'claimed' | KeyedRequest> {
    const key = keys.idempotencyKey(accountId, keyHash);
    const present = await claim.run(this.#redis, [key], [JSON.stringify(request), ttlMs]);
    return typeof present === 'string' ? parse(present) : 'claimed';
  }

  async get(accountId: string, keyHash: string): Promise<KeyedRequest | undefined> {
    const text = await this.#redis.get(keys.idempotencyKey(accountId, keyHash));
    return text === null ? undefined : parse(text);
  }

  /** Keeps the answer for whoever repeats the request. */
  async finish(
    accountId: string,
    keyHash: string,
    request: KeyedRequest,
    ttlMs: number,
  ): Promise<void> {
    const key = keys.idempotencyKey(accountId, keyHash);
    await settle.run(this.#redis, [key], [request.owner, JSON.stringify(request), ttlMs]);
  }

  /** Frees the key: nothing was done under it. */
  async giveUp(accountId: string, keyHash: string, owner: string): Promise<void> {
    await settle.run(this.#redis, [keys.idempotencyKey(accountId, keyHash)], [owner, '', 0]);
  }
}
