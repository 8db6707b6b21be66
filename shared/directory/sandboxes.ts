import type { Redis } from 'ioredis';
import { LIMITS } from '../limits.ts';
import { SandboxRecord } from '../schemas/sandbox-record.ts';
import { compile } from '../validate.ts';
import { keys } from './keys.ts';
import { SandboxRoutes } from './sandbox-routes.ts';
import { Script } from './script.ts';
import { parseJson } from '../json.ts';

/** A sandbox and the name it claims or has. */
export interface NamedSandbox {
  readonly accountId: string;
  readonly sandboxId: string;
  readonly name: string;
}

// KEYS of all scripts: records (JSON by id), names (id by name), claims ("<until> <id>" by name, in
// milliseconds). A name is in `names` from the first publication to the removal of its sandbox.

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
// ARGV id, name, revision, record. A sandbox that exists wins over a claim: another's claim to its
// name can exist only after Redis lost its data or after this sandbox's own claim had lapsed.
const publish = new Script(`
  local present = redis.call('HGET', KEYS[1], ARGV[1])
  local isRead, record = pcall(cjson.decode, present or '')
  local revision = isRead and type(record) == 'table' and tonumber(record.revision) or 0
  if tonumber(ARGV[3]) >= revision then redis.call('HSET', KEYS[1], ARGV[1], ARGV[4]) end
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

const check = compile(SandboxRecord);

/** @throws Error when the record is not one that Berth wrote */
function parse(text: string): SandboxRecord {
  try {
    return check(parseJson(text), 'sandbox record');
  } catch (cause) {
    // The check throws `bad_request`, but this is not the caller's mistake.
    throw new Error('the directory holds a sandbox record that cannot be read', { cause });
  }
}

const byAge = (a: SandboxRecord, b: SandboxRecord): number =>
  Date.parse(a.createdAt) - Date.parse(b.createdAt) || (a.id < b.id ? -1 : 1);

/**
 * Copies of all sandboxes' records for reading, published by their owners after each change, and the
 * names that are taken. After Redis lost its data the owners publish everything again.
 */
export class Sandboxes {
  readonly #redis: Redis;
  readonly #region: string;
  readonly #routes: SandboxRoutes;

  constructor(redis: Redis, region: string) {
    this.#redis = redis;
    this.#region = region;
    this.#routes = new SandboxRoutes(redis, region);
  }

  /**
   * Claims the name of a sandbox that is about to be created, and counts it against the account's
   * limit. The claim lapses after `ttlMs` unless the owner publishes the sandbox before; until it is
   * published, callers do not see it.
   */
  async claim(sandbox: NamedSandbox, ttlMs: number): Promise<'claimed' | 'name_taken' | 'limit'> {
    const { accountId, sandboxId, name } = sandbox;
    const result = await claim.run(this.#redis, this.#keys(accountId), [
      sandboxId,
      name,
      ttlMs,
      LIMITS.sandboxesPerAccountMax,
    ]);
    return result as 'claimed' | 'name_taken' | 'limit';
  }

  /** Releases a claim. A sandbox that was published by now is not touched. */
  async releaseClaim({ accountId, sandboxId, name }: NamedSandbox): Promise<void> {
    await releaseClaim.run(this.#redis, this.#keys(accountId), [sandboxId, name]);
  }

  /**
   * For the owner: publishes the sandbox's record and where its ports are reached. A revision older
   * than the present one is ignored.
   * @returns false when another sandbox has the name
   */
  async publish(record: SandboxRecord): Promise<boolean> {
    const { accountId, id, config, revision } = record;
    const args = [id, config.name, revision, JSON.stringify(record)];
    // In this order through one connection: whoever sees the sandbox finds its route.
    const [, isNamed] = await Promise.all([
      this.#routes.announce(record),
      publish.run(this.#redis, this.#keys(accountId), args),
    ]);
    return isNamed === 1;
  }

  /** For the owner: removes the record, ports and port tokens and frees the name. It must not publish the sandbox again. */
  async remove({ accountId, sandboxId, name }: NamedSandbox): Promise<void> {
    const removed = remove.run(this.#redis, this.#keys(accountId), [sandboxId, name]);
    await Promise.all([removed, this.#routes.remove(sandboxId)]);
  }

  async get(accountId: string, sandboxId: string): Promise<SandboxRecord | undefined> {
    const text = await this.#redis.hget(keys.sandboxes(this.#region, accountId), sandboxId);
    return text === null ? undefined : parse(text);
  }

  /** All sandboxes of the account, oldest first. */
  async list(accountId: string): Promise<SandboxRecord[]> {
    const texts = await this.#redis.hvals(keys.sandboxes(this.#region, accountId));
    return texts.map(parse).sort(byAge);
  }

  #keys(accountId: string): string[] {
    return [
      keys.sandboxes(this.#region, accountId),
      keys.sandboxNames(this.#region, accountId),
      keys.sandboxClaims(this.#region, accountId),
    ];
  }
}
