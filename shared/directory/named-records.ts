import type { RedisClient } from './redis-client.ts';
import { type LimitReached, readLimitReached } from './account-limits.ts';
import { Script } from './script.ts';

/** Records may be long: neither Redis nor the reader may stand still while all are read. */
const READ_AT_ONCE = 50;

/** A record and the name that it claims or has. */
export interface Named {
  readonly accountId: string;
  readonly id: string;
  readonly name: string;
}

// KEYS of all scripts: records (JSON by id), names (id by name), claims ("<until> <id>" by name, in
// milliseconds). A name is in `names` from the first publication to the removal of its record.

/**
 * Sums up the shares of an account's sandboxes. Reads the records themselves, so that no sum of its
 * own can differ from them; a claim has its share in a hash until there is a record or the claim
 * lapses. Text of callers cannot look like these fields: JSON has a backslash before each of its
 * quotes.
 */
const SUM_SHARES = `
  local function sumShares(records, shares, own, claimed)
    local vcpus, memory, there = 0, 0, {}
    local entries = redis.call('HGETALL', records)
    for i = 1, #entries, 2 do
      there[entries[i]] = true
      if entries[i] ~= own then
        vcpus = vcpus + tonumber(string.match(entries[i + 1], '"vcpuCount":(%d+)') or '0')
        memory = memory + tonumber(string.match(entries[i + 1], '"memSizeMib":(%d+)') or '0')
      end
    end
    entries = redis.call('HGETALL', shares)
    for i = 1, #entries, 2 do
      if entries[i] ~= own then
        if there[entries[i]] or not claimed[entries[i]] then
          redis.call('HDEL', shares, entries[i])
        else
          local shareVcpus, shareMemory = string.match(entries[i + 1], '^(%d+) (%d+)$')
          vcpus = vcpus + tonumber(shareVcpus)
          memory = memory + tonumber(shareMemory)
        end
      end
    end
    return vcpus, memory
  end
`;
// KEYS also limits of the account, shares of claims, for records that have shares; ARGV id, name,
// time to live, limit, vCPUs, memory
const claim = new Script(`
  ${SUM_SHARES}
  local holder = redis.call('HGET', KEYS[2], ARGV[2])
  if holder and holder ~= ARGV[1] then return 'name_taken' end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local others, claimed = 0, {}
  local claims = redis.call('HGETALL', KEYS[3])
  for i = 1, #claims, 2 do
    local ends, id = string.match(claims[i + 1], '^(%d+) (.+)$')
    if not ends or tonumber(ends) <= now then redis.call('HDEL', KEYS[3], claims[i])
    elseif id ~= ARGV[1] then
      if claims[i] == ARGV[2] then return 'name_claimed' end
      others = others + 1
      claimed[id] = true
    end
  end
  local count = redis.call('HLEN', KEYS[1]) + others
  if count >= tonumber(ARGV[4]) then return 'limit' end
  if KEYS[4] then
    local max = redis.call('HMGET', KEYS[4], 'sandboxes', 'vcpus', 'memoryMib')
    if max[1] and count >= tonumber(max[1]) then
      return 'over sandboxes ' .. max[1] .. ' ' .. count
    end
    local vcpus, memory = 0, 0
    if max[2] or max[3] then
      vcpus, memory = sumShares(KEYS[1], KEYS[5], ARGV[1], claimed)
    end
    if max[2] and vcpus + tonumber(ARGV[5]) > tonumber(max[2]) then
      return 'over vcpus ' .. max[2] .. ' ' .. vcpus
    end
    if max[3] and memory + tonumber(ARGV[6]) > tonumber(max[3]) then
      return 'over memoryMib ' .. max[3] .. ' ' .. memory
    end
    redis.call('HSET', KEYS[5], ARGV[1], ARGV[5] .. ' ' .. ARGV[6])
  end
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
// ARGV id, name, revision, or '' for whatever is there
const remove = new Script(`
  local present = ARGV[3] ~= '' and redis.call('HGET', KEYS[1], ARGV[1])
  local isRead, record = pcall(cjson.decode, present or '')
  local revision = isRead and type(record) == 'table' and tonumber(record.revision) or 0
  if present and revision > tonumber(ARGV[3]) then return 0 end
  redis.call('HDEL', KEYS[1], ARGV[1])
  if redis.call('HGET', KEYS[2], ARGV[2]) == ARGV[1] then redis.call('HDEL', KEYS[2], ARGV[2]) end
  local holder = redis.call('HGET', KEYS[3], ARGV[2])
  if holder and string.match(holder, ' (.+)$') == ARGV[1] then
    redis.call('HDEL', KEYS[3], ARGV[2])
  end
  return 1
`);

/** The keys of one account's records, names and claims. */
export interface NamedRecordKeys {
  readonly records: string;
  readonly names: string;
  readonly claims: string;
  /** Key that names the host which removes a record, because its creation failed. */
  readonly undone: (id: string) => string;
  /** For records that have a share of what the account may have. */
  readonly limited?: { readonly limits: string; readonly shares: string };
}

/** A record's part of its account's limits. */
export interface Share {
  readonly vcpus: number;
  readonly memoryMib: number;
}

/** `name_claimed`: for another record, which may never be there. */
export type ClaimResult = 'claimed' | 'name_taken' | 'name_claimed' | 'limit' | LimitReached;

/** A host that is away for longer keeps the name of what it has to remove. */
const UNDONE_MS = 60_000;
const NO_SHARE: Share = { vcpus: 0, memoryMib: 0 };

/**
 * Records of one kind by account and id, each with a name that no other record of the account has.
 * Hosts publish copies of what they own; creators claim a name first, for a limited time.
 */
export class NamedRecords {
  readonly #redis: RedisClient;
  readonly #keysOf: (accountId: string) => NamedRecordKeys;
  readonly #countMax: number;

  /** @param countMax how many records an account may have, claims included */
  constructor(
    redis: RedisClient,
    keysOf: (accountId: string) => NamedRecordKeys,
    countMax: number,
  ) {
    this.#redis = redis;
    this.#keysOf = keysOf;
    this.#countMax = countMax;
  }

  /** Claims a name for a record that is about to be made; the claim lapses after `ttlMs`. */
  async claim(
    { accountId, id, name }: Named,
    ttlMs: number,
    { vcpus, memoryMib }: Share = NO_SHARE,
  ): Promise<ClaimResult> {
    const { limited } = this.#keysOf(accountId);
    const ofLimits = limited === undefined ? [] : [limited.limits, limited.shares];
    const args = [id, name, ttlMs, this.#countMax, vcpus, memoryMib];
    const result = await claim.run(this.#redis, [...this.#keys(accountId), ...ofLimits], args);
    return (
      readLimitReached(result) ?? (result as 'claimed' | 'name_taken' | 'name_claimed' | 'limit')
    );
  }

  /** Releases a claim. A record that was published by now is not touched. */
  async releaseClaim({ accountId, id, name }: Named): Promise<void> {
    await releaseClaim.run(this.#redis, this.#keys(accountId), [id, name]);
  }

  /** Notes that a host is to remove a record whose creation failed. It may not have one. */
  async noteUndone(accountId: string, id: string, hostId: string): Promise<void> {
    await this.#redis.set(this.#keysOf(accountId).undone(id), hostId, 'PX', UNDONE_MS);
  }

  /**
   * Whether the name is held only until a host has removed a record whose creation failed.
   * @param hostIdOf reads the host from a record's JSON
   */
  async isBeingUndone(
    accountId: string,
    name: string,
    hostIdOf: (record: string) => string,
  ): Promise<boolean> {
    const id = await this.idOf(accountId, name);
    if (id === undefined) return false;
    const [hostId, record] = await Promise.all([
      this.#redis.get(this.#keysOf(accountId).undone(id)),
      this.get(accountId, id),
    ]);
    return record !== undefined && hostIdOf(record) === hostId;
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

  /**
   * Removes a record and frees its name.
   * @param revision a newer one is another owner's and stays; undefined: whatever is there goes
   * @returns whether nothing of it is left
   */
  async remove({ accountId, id, name }: Named, revision?: number): Promise<boolean> {
    const args = [id, name, revision ?? ''];
    return (await remove.run(this.#redis, this.#keys(accountId), args)) === 1;
  }

  /** The record's JSON. */
  async get(accountId: string, id: string): Promise<string | undefined> {
    return (await this.#redis.hget(this.#keysOf(accountId).records, id)) ?? undefined;
  }

  /** The id of the record that has the name. */
  async idOf(accountId: string, name: string): Promise<string | undefined> {
    return (await this.#redis.hget(this.#keysOf(accountId).names, name)) ?? undefined;
  }

  /** The JSON of all records of the account, in no order, some at a time. */
  async *list(accountId: string): AsyncGenerator<string[]> {
    const key = this.#keysOf(accountId).records;
    const ids = await this.#redis.hkeys(key);
    for (let at = 0; at < ids.length; at += READ_AT_ONCE) {
      const texts = await this.#redis.hmget(key, ...ids.slice(at, at + READ_AT_ONCE));
      yield texts.filter((text) => text !== null);
    }
  }

  #keys(accountId: string): string[] {
    const { records, names, claims } = this.#keysOf(accountId);
    return [records, names, claims];
  }
}
