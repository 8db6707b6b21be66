import type { Redis } from 'ioredis';
import { Script } from './script.ts';

/** A record and the name that it claims or has. */
export interface Named {
  readonly accountId: string;
  readonly id: string;
  readonly name: string;
}

// KEYS of all scripts: records (JSON by id), names (id by name), claims ("<until> <id>" by name, in
// milliseconds). A name is in `names` from the first publication to the removal of its record.

// ARGV id, name, time to live, limit
const claim = new Script(`
  local holder = redis.call('HGET', KEYS[2], ARGV[2])
  if holder and holder ~= ARGV[1] then return 'name_taken' end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local others = 0
  local claims = redis.call('HGETALL', KEYS[3])
  for i = 1, #claims, 2 do
    local ends, id = string.match(claims[i + 1], '^(%d+) (.+)$')
    if not ends or tonumber(ends) <= now then redis.call('HDEL', KEYS[3], claims[i])
    elseif id ~= ARGV[1] then
      if claims[i] == ARGV[2] then return 'name_taken' end
      others = others + 1
    end
  end
  if redis.call('HLEN', KEYS[1]) + others >= tonumber(ARGV[4]) then return 'limit' end
  local ends = string.format('%.0f', now + tonumber(ARGV[3]))
  redis.call('HSET', KEYS[3], ARGV[2], ends .. ' ' .. ARGV[1])
  return 'claimed'
`);
// ARGV id, name
const releaseClaim = new Script(`
  local present = redis.call('HGET', KEYS[3], ARGV[2])
  if not present or string.match(present, ' (.+)$') ~= ARGV[1] then return 0 end
  redis.call('HDEL', KEYS[3], ARGV[2])
  return 1
`);
// ARGV id, name, revision, record, whether it has the name. A record that exists wins over a claim:
// another's claim to its name can exist only after Redis lost its data or after its own claim had
// lapsed.
const publish = new Script(`
  local present = redis.call('HGET', KEYS[1], ARGV[1])
  local isRead, record = pcall(cjson.decode, present or '')
  local revision = isRead and type(record) == 'table' and tonumber(record.revision) or 0
  if tonumber(ARGV[3]) < revision then
    return redis.call('HGET', KEYS[2], ARGV[2]) == ARGV[1] and 1 or 0
  end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
  if ARGV[5] == '0' then
    if redis.call('HGET', KEYS[2], ARGV[2]) == ARGV[1] then redis.call('HDEL', KEYS[2], ARGV[2]) end
    local holder = redis.call('HGET', KEYS[3], ARGV[2])
    if holder and string.match(holder, ' (.+)$') == ARGV[1] then
      redis.call('HDEL', KEYS[3], ARGV[2])
    end
    return 1
  end
  redis.call('HDEL', KEYS[3], ARGV[2])
  redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[1])
  return redis.call('HGET', KEYS[2], ARGV[2]) == ARGV[1] and 1 or 0
`);
// ARGV id, name
const remove = new Script(`
  redis.call('HDEL', KEYS[1], ARGV[1])
  if redis.call('HGET', KEYS[2], ARGV[2]) == ARGV[1] then redis.call('HDEL', KEYS[2], ARGV[2]) end
  local present = redis.call('HGET', KEYS[3], ARGV[2])
  if present and string.match(present, ' (.+)$') == ARGV[1] then
    redis.call('HDEL', KEYS[3], ARGV[2])
  end
  return 1
`);

/** The keys of one account's records, names and claims. */
export interface NamedRecordKeys {
  readonly records: string;
  readonly names: string;
  readonly claims: string;
}

/**
 * Records of one kind by account and id, each with a name that no other record of the account has.
 * Hosts publish copies of what they own; creators claim a name first, for a limited time.
 */
export class NamedRecords {
  readonly #redis: Redis;
  readonly #keysOf: (accountId: string) => NamedRecordKeys;
  readonly #countMax: number;

  /** @param countMax how many records an account may have, claims included */
  constructor(redis: Redis, keysOf: (accountId: string) => NamedRecordKeys, countMax: number) {
    this.#redis = redis;
    this.#keysOf = keysOf;
    this.#countMax = countMax;
  }

  /** Claims a name for a record that is about to be made; the claim lapses after `ttlMs`. */
  async claim(
    { accountId, id, name }: Named,
    ttlMs: number,
  ): Promise<'claimed' | 'name_taken' | 'limit'> {
    const args = [id, name, ttlMs, this.#countMax];
    const result = await claim.run(this.#redis, this.#keys(accountId), args);
    return result as 'claimed' | 'name_taken' | 'limit';
  }

  /** Releases a claim. A record that was published by now is not touched. */
  async releaseClaim({ accountId, id, name }: Named): Promise<void> {
    await releaseClaim.run(this.#redis, this.#keys(accountId), [id, name]);
  }

  /**
   * Writes a record unless a newer revision is there.
   * @param record its JSON has `revision` as a field
   * @param options.isNamed false: the record stays, but its name is free for another
   * @returns false when another record has the name
   */
  async publish(
    { accountId, id, name }: Named,
    record: { readonly revision: number },
    { isNamed = true }: { readonly isNamed?: boolean } = {},
  ): Promise<boolean> {
    const args = [id, name, record.revision, JSON.stringify(record), isNamed ? '1' : '0'];
    return (await publish.run(this.#redis, this.#keys(accountId), args)) === 1;
  }

  /** Removes a record and frees its name. */
  async remove({ accountId, id, name }: Named): Promise<void> {
    await remove.run(this.#redis, this.#keys(accountId), [id, name]);
  }

  /** The record's JSON. */
  async get(accountId: string, id: string): Promise<string | undefined> {
    return (await this.#redis.hget(this.#keysOf(accountId).records, id)) ?? undefined;
  }

  /** The id of the record that has the name. */
  async idOf(accountId: string, name: string): Promise<string | undefined> {
    return (await this.#redis.hget(this.#keysOf(accountId).names, name)) ?? undefined;
  }

  /** The JSON of all records of the account, in no order. */
  async list(accountId: string): Promise<string[]> {
    return this.#redis.hvals(this.#keysOf(accountId).records);
  }

  #keys(accountId: string): string[] {
    const { records, names, claims } = this.#keysOf(accountId);
    return [records, names, claims];
  }
}
