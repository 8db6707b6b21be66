import type { RedisClient } from './redis-client.ts';
import { AppError } from '../errors.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { keys } from './keys.ts';
import type { ReplicaConfirmation } from './replica-confirmation.ts';
import { Script } from './script.ts';
import { parseJson } from '../json.ts';

/** The first request that carried a key. */
export interface KeyedRequest {
  /** Identifies the request that holds the key: only it may finish or release the key. */
  readonly owner: string;
  /** The control node that holds the request, and its region: nobody else will finish the key. */
  readonly nodeId: string;
  readonly region: string;
  /** A digest of path and body, to detect another request under the same key. */
  readonly fingerprint: string;
  /** Until when the owner may still be working, in milliseconds since the epoch. */
  readonly runningUntil: number;
  /** The status of the answer, once there is one. */
  readonly status?: number;
  /** The sealed answer, if it was small enough to keep. */
  readonly answer?: string;
}

/** Limits on the number of keys and on the bytes of answers. */
export interface IdempotencyBounds {
  readonly keysPerAccount: number;
  readonly keys: number;
  readonly bytesPerAccount: number;
  readonly bytes: number;
}

const BOUNDS: IdempotencyBounds = {
  keysPerAccount: DIRECTORY_LIMITS.idempotencyKeysPerAccountMax,
  keys: DIRECTORY_LIMITS.idempotencyKeysMax,
  bytesPerAccount: DIRECTORY_LIMITS.idempotentBytesPerAccountMax,
  bytes: DIRECTORY_LIMITS.idempotentBytesMax,
};

// KEYS claim, answer, use, ends, answers
// ARGV account id, hash of the key
//   use      hash: '<kind> <account>' and '<kind>' for all accounts. Kind k: keys; a: bytes of
//            answers
//   ends     zset by time of expiry: '<kind> <size> <account> <hash>'
//   answers  zset of the account by the same time: '<size> <hash>'
const PRELUDE = `
  local account, hash = ARGV[1], ARGV[2]
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local function count(kind, of, by)
    redis.call('HINCRBY', KEYS[3], kind, by)
    if redis.call('HINCRBY', KEYS[3], kind .. ' ' .. of, by) <= 0 then
      redis.call('HDEL', KEYS[3], kind .. ' ' .. of)
    end
  end
  local function used(kind) return tonumber(redis.call('HGET', KEYS[3], kind) or 0) end
  -- Whether an account may have so much more: up to its own bound, and never more than what is then
  -- left for all others.
  local function fits(kind, more, perAccount, total)
    local held = used(kind .. ' ' .. account) + more
    return held <= tonumber(perAccount) and held <= tonumber(total) - used(kind) - more
  end
  local function note(kind, size, ends)
    local entry = kind .. ' ' .. size .. ' ' .. account .. ' ' .. hash
    if redis.call('ZADD', KEYS[4], ends, entry) == 1 then count(kind, account, size) end
  end
  local function forget(kind, size, of, ofHash)
    if redis.call('ZREM', KEYS[4], kind .. ' ' .. size .. ' ' .. of .. ' ' .. ofHash) == 1 then
      count(kind, of, -size)
    end
  end
  local past = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 100)
  for _, entry in ipairs(past) do
    local kind, size, of, ofHash = string.match(entry, '^(%a) (%d+) (%S+) (%S+)$')
    forget(kind, tonumber(size), of, ofHash)
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now)
`;

// ARGV[3] request, time to live, keys per account, keys. Returns the present request, 1 when the
// key was claimed, or 0 when there are too many keys.
const claim = new Script(`
  local present = redis.call('GET', KEYS[1])
  if present then return { present, redis.call('GET', KEYS[2]) } end
  ${PRELUDE}
  if not fits('k', 1, ARGV[5], ARGV[6]) then return 0 end
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
  note('k', 1, now + ARGV[4])
  return 1
`);
// ARGV[3] owner, request, time to live, answer or '', bytes per account, bytes, prefix of answers.
// A key that is absent was lost after its claim, by a failover or with all of Redis: it is written
// anew, even beyond the number of keys, because the work is done. Its owner never finishes a key
// that it has released. The key itself always stays, or the request would be done again. To make
// space for a new answer the oldest answers of the same account are removed, never those of
// another.
const finish = new Script(`
  local present = redis.call('GET', KEYS[1])
  if present and cjson.decode(present).owner ~= ARGV[3] then return 0 end
  ${PRELUDE}
  local ends = now + ARGV[5]
  redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
  note('k', 1, ends)
  local size = #ARGV[6]
  if size == 0 then return 1 end
  while not fits('a', size, ARGV[7], ARGV[8]) do
    local oldest = redis.call('ZPOPMIN', KEYS[5])[1]
    if not oldest then return 1 end
    local oldSize, oldHash = string.match(oldest, '^(%d+) (%S+)$')
    redis.call('DEL', ARGV[9] .. oldHash)
    forget('a', tonumber(oldSize), account, oldHash)
  end
  redis.call('SET', KEYS[2], ARGV[6], 'PX', ARGV[5])
  redis.call('ZADD', KEYS[5], ends, size .. ' ' .. hash)
  redis.call('PEXPIRE', KEYS[5], ARGV[5])
  note('a', size, ends)
  return 1
`);
// ARGV[3] owner
const release = new Script(`
  local present = redis.call('GET', KEYS[1])
  if not present or cjson.decode(present).owner ~= ARGV[3] then return 0 end
  ${PRELUDE}
  redis.call('DEL', KEYS[1])
  forget('k', 1, account, hash)
  return 1
`);

function parse(text: string, answer: unknown): KeyedRequest {
  const request = parseJson(text) as KeyedRequest;
  return typeof answer === 'string' ? { ...request, answer } : request;
}

/**
 * Keeps each account's `Idempotency-Key`s with the first request that carried each, and its answer
 * while there is space. Keys and bytes are limited per account and in total, by the same fair
 * shares as turns on a host, so that one account cannot leave nothing for the next.
 */
export class IdempotencyKeys {
  readonly #redis: RedisClient;
  readonly #confirmation: ReplicaConfirmation;
  readonly #bounds: IdempotencyBounds;

  /** @param confirmation of claims; whatever is kept is confirmed where callers are answered */
  constructor(
    redis: RedisClient,
    confirmation: ReplicaConfirmation,
    bounds: IdempotencyBounds = BOUNDS,
  ) {
    this.#redis = redis;
    this.#confirmation = confirmation;
    this.#bounds = bounds;
  }

  /**
   * Claims the key for a request, whose work may begin then. Where replicas of Redis are to confirm
   * changes, they have the claim: a failover does not lose it.
   * @returns the request that holds the key already, or `full` when the account may have no more
   *   keys
   * @throws AppError `unavailable` when no replica confirms the claim: the key is released
   */
  async claim(
    accountId: string,
    keyHash: string,
    request: KeyedRequest,
    ttlMs: number,
  ): Promise<'claimed' | 'full' | KeyedRequest> {
    const { keysPerAccount, keys: keysMax } = this.#bounds;
    const args = [JSON.stringify(request), ttlMs, keysPerAccount, keysMax];
    const found = await this.#confirmation
      .confirmed(
        () => this.#run(claim, accountId, keyHash, args),
        (result) => result === 1,
      )
      .catch(async (cause: unknown) => {
        if (!(cause instanceof AppError)) throw cause;
        await this.release(accountId, keyHash, request.owner).catch(() => undefined);
        const message = 'no replica of Redis has confirmed the Idempotency-Key; try again';
        throw new AppError('unavailable', message, { cause });
      });
    if (Array.isArray(found)) return parse(String(found[0]), found[1]);
    return found === 1 ? 'claimed' : 'full';
  }

  async get(accountId: string, keyHash: string): Promise<KeyedRequest | undefined> {
    const [text = null, answer = null] = await this.#redis.mget(
      keys.idempotencyKey(accountId, keyHash),
      keys.idempotencyAnswer(accountId, keyHash),
    );
    return text === null ? undefined : parse(text, answer);
  }

  /**
   * Keeps the status, and the answer if there is space, for repetitions of the request; also when
   * the claim was lost, unless another request has claimed the key since.
   */
  async finish(
    accountId: string,
    keyHash: string,
    { answer = '', ...request }: KeyedRequest,
    ttlMs: number,
  ): Promise<void> {
    const { bytesPerAccount, bytes } = this.#bounds;
    const prefix = keys.idempotencyAnswer(accountId, '');
    const bounds = [bytesPerAccount, bytes];
    const args = [request.owner, JSON.stringify(request), ttlMs, answer, ...bounds, prefix];
    await this.#run(finish, accountId, keyHash, args);
  }

  /** Releases the key, because nothing was done under it. */
  async release(accountId: string, keyHash: string, owner: string): Promise<void> {
    await this.#run(release, accountId, keyHash, [owner]);
  }

  #run(
    script: Script,
    accountId: string,
    keyHash: string,
    args: (string | number)[],
  ): Promise<unknown> {
    const places = [
      keys.idempotencyKey(accountId, keyHash),
      keys.idempotencyAnswer(accountId, keyHash),
      keys.idempotencyUse(),
      keys.idempotencyEnds(),
      keys.idempotencyAnswers(accountId),
    ];
    return script.run(this.#redis, places, [accountId, keyHash, ...args]);
  }
}
