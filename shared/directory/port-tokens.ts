import type { RedisClient } from './redis-client.ts';
import { routeIdOf } from '../ids.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { randomSecret, sha256 } from '../secrets.ts';
import { keys } from './keys.ts';
import { orderedMember, type Page, type PageRequest, readPage } from './page.ts';
import { readTerms, tokenField } from './sandbox-routes.ts';
import { Script } from './script.ts';

/** A port token without the token itself, which is not stored. Times are RFC 3339. */
export interface PortToken {
  /** SHA-256 of the token. */
  readonly id: string;
  readonly port: number;
  readonly createdAt: string;
  /** Undefined: never. */
  readonly expiresAt: string | undefined;
}

// KEYS of all scripts: route (its hash has the tokens), order (members as `orderedMember` makes
// them), ends (members by the time at which they expire).

// ARGV now
const PRUNE = `
  local ended = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ARGV[1])
  for _, member in ipairs(ended) do
    redis.call('HDEL', KEYS[1], 'token:' .. string.match(member, ':(.+)$'))
    redis.call('ZREM', KEYS[2], member)
    redis.call('ZREM', KEYS[3], member)
  end
`;
const prune = new Script(`${PRUNE} return #ended`);
// ARGV now, field, member, terms, end, limit
const add = new Script(`
  if redis.call('HEXISTS', KEYS[1], 'sandboxId') == 0 then return 'missing' end
  ${PRUNE}
  if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[6]) then return 'limit' end
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[4])
  redis.call('ZADD', KEYS[2], 0, ARGV[3])
  if ARGV[5] ~= '0' then redis.call('ZADD', KEYS[3], ARGV[5], ARGV[3]) end
  return 'added'
`);
// ARGV now, field, member
const remove = new Script(`
  ${PRUNE}
  redis.call('ZREM', KEYS[2], ARGV[3])
  redis.call('ZREM', KEYS[3], ARGV[3])
  return redis.call('HDEL', KEYS[1], ARGV[2])
`);

const isoOf = (time: number): string => new Date(time).toISOString();

function toToken(id: string, text: string): PortToken {
  const { port, createdAt, expiresAt } = readTerms(text);
  return {
    ...{ id, port, createdAt: isoOf(createdAt) },
    expiresAt: expiresAt === undefined ? undefined : isoOf(expiresAt),
  };
}

const isLive = ({ expiresAt }: PortToken): boolean =>
  expiresAt === undefined || Date.parse(expiresAt) > Date.now();

/** The tokens that open private ports of sandboxes, stored as SHA-256 only, in Redis alone. */
export class PortTokens {
  readonly #redis: RedisClient;
  readonly #region: string;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#region = region;
  }

  /**
   * @param ttlMs undefined: it never expires
   * @returns the token, which cannot be read again; `missing` while the sandbox's owner has not
   *   announced it, `limit` when it has as many as it may
   */
  async create(
    sandboxId: string,
    { port, ttlMs }: { readonly port: number; readonly ttlMs: number | undefined },
  ): Promise<{ readonly record: PortToken; readonly token: string } | 'limit' | 'missing'> {
    const token = `pt-${randomSecret()}`;
    const id = sha256(token);
    const now = Date.now();
    const end = ttlMs === undefined ? 0 : now + ttlMs;
    const terms = `${port} ${now} ${end}`;
    const member = orderedMember(isoOf(now), id);
    const args = [
      now,
      tokenField(id),
      member,
      terms,
      end,
      DIRECTORY_LIMITS.portTokensPerSandboxMax,
    ];
    const result = await add.run(this.#redis, this.#keys(sandboxId), args);
    if (result === 'missing' || result === 'limit') return result;
    return { record: toToken(id, terms), token };
  }

  /** Those that have not expired, oldest first. */
  async list(sandboxId: string, request: PageRequest): Promise<Page<PortToken>> {
    await prune.run(this.#redis, this.#keys(sandboxId), [Date.now()]);
    const key = keys.portTokens(this.#region, routeIdOf(sandboxId));
    const page = await readPage(this.#redis, key, request);
    const tokens = await Promise.all(page.items.map((id) => this.get(sandboxId, id)));
    return { ...page, items: tokens.filter((token) => token !== undefined) };
  }

  /** @returns undefined when there is none, or it has expired */
  async get(sandboxId: string, id: string): Promise<PortToken | undefined> {
    const key = keys.sandboxRoute(this.#region, routeIdOf(sandboxId));
    const text = await this.#redis.hget(key, tokenField(id));
    const token = text === null ? undefined : toToken(id, text);
    return token !== undefined && isLive(token) ? token : undefined;
  }

  /** Revokes a token: the next request with it is refused. @returns false when there is none */
  async remove(sandboxId: string, id: string): Promise<boolean> {
    const token = await this.get(sandboxId, id);
    if (token === undefined) return false;
    const member = orderedMember(token.createdAt, id);
    const args = [Date.now(), tokenField(id), member];
    return (await remove.run(this.#redis, this.#keys(sandboxId), args)) === 1;
  }

  #keys(sandboxId: string): string[] {
    const routeId = routeIdOf(sandboxId);
    return [
      keys.sandboxRoute(this.#region, routeId),
      keys.portTokens(this.#region, routeId),
      keys.portTokenEnds(this.#region, routeId),
    ];
  }
}
