import type { Redis } from 'ioredis';
import { AppError } from '../errors.ts';
import { LIMITS } from '../limits.ts';
import type { ApiKey } from '../schemas/api-key.ts';
import { randomSecret, sha256 } from '../secrets.ts';
import type { Account } from './accounts.ts';
import { keys } from './keys.ts';
import { orderedMember, type Page, type PageRequest, readPage } from './page.ts';
import { Script } from './script.ts';

/** The caller of a request, as its API key identifies it. */
export interface Caller {
  readonly accountId: string;
  readonly organization: string;
  readonly keyId: string;
}

export interface ApiKeyRecord extends ApiKey {
  readonly accountId: string;
  readonly organization: string;
}

const touchIfPresent = new Script(`
  if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'lastUsedAt', ARGV[1]) end
  return 0
`);

function toRecord(fields: Record<string, string>): ApiKeyRecord | undefined {
  const { id, name, tokenSuffix, createdAt, accountId, organization } = fields;
  if (id === undefined || name === undefined || tokenSuffix === undefined) return undefined;
  if (createdAt === undefined || accountId === undefined || organization === undefined) {
    return undefined;
  }
  return {
    id,
    name,
    tokenSuffix,
    createdAt,
    accountId,
    organization,
    ...(fields['description'] === undefined ? {} : { description: fields['description'] }),
    ...(fields['lastUsedAt'] === undefined ? {} : { lastUsedAt: fields['lastUsedAt'] }),
  };
}

/**
 * API keys, stored as SHA-256 only. A key is valid while its record exists; the account's list is an
 * index to the records.
 */
export class ApiKeys {
  readonly #redis: Redis;

  constructor(redis: Redis) {
    this.#redis = redis;
  }

  /** @returns the record, and the whole key, which is not stored and cannot be read again */
  async create(
    account: Pick<Account, 'id' | 'name'>,
    input: { name: string; description?: string | undefined },
  ): Promise<{ record: ApiKeyRecord; token: string }> {
    if ((await this.#redis.zcard(keys.apiKeys(account.id))) >= LIMITS.apiKeysPerAccountMax) {
      throw new AppError(
        'bad_request',
        `the account has ${LIMITS.apiKeysPerAccountMax} API keys; delete one first`,
      );
    }
    const token = `key-${randomSecret()}`;
    const record: ApiKeyRecord = {
      id: sha256(token),
      name: input.name,
      ...(input.description === undefined ? {} : { description: input.description }),
      tokenSuffix: token.slice(-4),
      createdAt: new Date().toISOString(),
      accountId: account.id,
      organization: account.name,
    };
    await this.restore(record);
    return { record, token };
  }

  /** Writes the index first, so that every key that works is listed and can be deleted. */
  async restore(record: ApiKeyRecord): Promise<void> {
    const member = orderedMember(record.createdAt, record.id);
    await this.#redis.zadd(keys.apiKeys(record.accountId), 0, member);
    await this.#redis.hset(keys.apiKey(record.id), { ...record });
  }

  async authenticate(token: string): Promise<Caller | undefined> {
    const keyId = sha256(token);
    const [accountId, organization] = await this.#redis.hmget(
      keys.apiKey(keyId),
      'accountId',
      'organization',
    );
    if (typeof accountId !== 'string' || typeof organization !== 'string') return undefined;
    return { accountId, organization, keyId };
  }

  async recordUse(keyId: string): Promise<void> {
    await touchIfPresent.run(this.#redis, [keys.apiKey(keyId)], [new Date().toISOString()]);
  }

  async list(accountId: string, request: PageRequest): Promise<Page<ApiKeyRecord>> {
    const page = await readPage(this.#redis, keys.apiKeys(accountId), request);
    const records = await Promise.all(
      page.items.map(async (id) => toRecord(await this.#redis.hgetall(keys.apiKey(id)))),
    );
    return { ...page, items: records.filter((record) => record !== undefined) };
  }

  /** @returns false when the account has no such key */
  async remove(accountId: string, keyId: string): Promise<boolean> {
    const record = toRecord(await this.#redis.hgetall(keys.apiKey(keyId)));
    if (record === undefined || record.accountId !== accountId) return false;
    await this.#redis.del(keys.apiKey(keyId));
    await this.#redis.zrem(keys.apiKeys(accountId), orderedMember(record.createdAt, keyId));
    return true;
  }
}
