import type { RedisClient } from './redis-client.ts';
import { AppError } from '../errors.ts';
import { FULL_SCOPES, type KeyScope, keyScopes } from '../key-scopes.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { RememberedReads } from '../remembered-reads.ts';
import type { ApiKey } from '../schemas/api-key.ts';
import { randomSecret, sha256 } from '../secrets.ts';
import { MINUTE_MS } from '../units.ts';
import type { Account } from './accounts.ts';
import { keys } from './keys.ts';
import { idOf, orderedMember, type Page, type PageRequest, readPage } from './page.ts';
import { Script } from './script.ts';

/** The caller of a request, as its API key identifies it. */
export interface Caller {
  readonly accountId: string;
  readonly organization: string;
  readonly keyId: string;
  /** Scopes of the key (docs/api.md, Scopes). */
  readonly scopes: readonly KeyScope[];
  /** When the key ends, in milliseconds since the epoch; undefined: not by itself. */
  readonly endsAt?: number;
}

/**
 * When something ends that is made with a key: with the key at the latest.
 * @param wanted milliseconds since the epoch; undefined: never
 */
export const endWithKey = ({ endsAt }: Pick<Caller, 'endsAt'>, wanted?: number) =>
  endsAt === undefined || (wanted !== undefined && wanted < endsAt) ? wanted : endsAt;

/** Written so that a time that cannot be read has passed. */
const hasEnded = ({ endsAt }: Caller): boolean => endsAt !== undefined && !(endsAt > Date.now());

export interface ApiKeyRecord extends ApiKey {
  readonly accountId: string;
  readonly organization: string;
}

/** A member of the index that is this old and has no key gets none any more. */
const UNUSED_MEMBER_MS = 10 * MINUTE_MS;

// KEYS keys of the account; ARGV member, limit
const addToIndex = new Script(`
  if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
  redis.call('ZADD', KEYS[1], 0, ARGV[1])
  return 1
`);

const touchIfPresent = new Script(`
  if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'lastUsedAt', ARGV[1]) end
  return 0
`);

/**
 * The stored form is words between spaces. Keys of earlier versions have none and may do
 * everything.
 */
function toScopes(text: string | null | undefined): readonly KeyScope[] {
  if (text === undefined || text === null) return FULL_SCOPES;
  return keyScopes.filter((scope) => text.split(' ').includes(scope));
}

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
    scopes: [...toScopes(fields['scopes'])],
    ...(fields['expiresAt'] === undefined ? {} : { expiresAt: fields['expiresAt'] }),
    ...(fields['description'] === undefined ? {} : { description: fields['description'] }),
    ...(fields['lastUsedAt'] === undefined ? {} : { lastUsedAt: fields['lastUsedAt'] }),
  };
}

/**
 * API keys, stored as SHA-256 only. A key is valid while its record exists; the account's list is
 * an index to the records. This process notices at once what it deletes itself.
 */
export class ApiKeys {
  readonly #redis: RedisClient;
  /** A key that another process deleted is good here until its time is over (decision 0099). */
  readonly #callers = new RememberedReads<Caller | undefined>({
    forMs: DIRECTORY_LIMITS.apiKeyRememberedMs,
    max: DIRECTORY_LIMITS.apiKeysRememberedMax,
  });

  constructor(redis: RedisClient) {
    this.#redis = redis;
  }

  /**
   * @param input without `scopes` the key may do everything; without `expiresAt` it does not end
   * @returns the record, and the whole key, which is not stored and cannot be read again
   * @throws AppError `bad_request` when the account has as many as it may
   */
  async create(
    account: Pick<Account, 'id' | 'name'>,
    input: {
      readonly name: string;
      readonly description?: string | undefined;
      readonly scopes?: readonly KeyScope[] | undefined;
      readonly expiresAt?: string | undefined;
    },
  ): Promise<{ record: ApiKeyRecord; token: string }> {
    const token = `key-${randomSecret()}`;
    const record: ApiKeyRecord = {
      id: sha256(token),
      name: input.name,
      ...(input.description === undefined ? {} : { description: input.description }),
      tokenSuffix: token.slice(-4),
      createdAt: new Date().toISOString(),
      accountId: account.id,
      organization: account.name,
      scopes: [...(input.scopes ?? FULL_SCOPES)],
      ...(input.expiresAt === undefined ? {} : { expiresAt: input.expiresAt }),
    };
    // The index comes first, as in `restore`.
    if (!(await this.#addToIndex(record))) {
      await this.#dropUnusedMembers(account.id);
      if (!(await this.#addToIndex(record))) {
        const max = DIRECTORY_LIMITS.apiKeysPerAccountMax;
        throw new AppError('bad_request', `the account has ${max} API keys; delete one first`);
      }
    }
    await this.#write(record);
    return { record, token };
  }

  /** @returns false when the account has as many keys as it may */
  async #addToIndex({ accountId, createdAt, id }: ApiKeyRecord): Promise<boolean> {
    const args = [orderedMember(createdAt, id), DIRECTORY_LIMITS.apiKeysPerAccountMax];
    return (await addToIndex.run(this.#redis, [keys.apiKeys(accountId)], args)) === 1;
  }

  /** Removes members of the index that have no key, because a call was cut off between the two. */
  async #dropUnusedMembers(accountId: string): Promise<void> {
    const index = keys.apiKeys(accountId);
    // The keys of younger ones may be about to be written.
    const until = orderedMember(new Date(Date.now() - UNUSED_MEMBER_MS).toISOString(), '');
    const members = await this.#redis.zrangebylex(index, '-', `(${until}`);
    const isKey = await Promise.all(
      members.map((member) => this.#redis.exists(keys.apiKey(idOf(member)))),
    );
    const unused = members.filter((_, at) => isKey[at] === 0);
    if (unused.length > 0) await this.#redis.zrem(index, ...unused);
  }

  /** Writes the index first, so that every key that works is listed and can be deleted. */
  async restore(record: ApiKeyRecord): Promise<void> {
    const member = orderedMember(record.createdAt, record.id);
    const index = keys.apiKeys(record.accountId);
    await this.#redis.zadd(index, 0, member);
    await this.#write(record);
    // Again: a call of `create` may have dropped the member while it had no key.
    await this.#redis.zadd(index, 0, member);
  }

  async #write(record: ApiKeyRecord): Promise<void> {
    const scopes = record.scopes.join(' ');
    await this.#redis.hset(keys.apiKey(record.id), { ...record, scopes });
  }

  /**
   * The caller whose key this is, as of `DIRECTORY_LIMITS.apiKeyRememberedMs` ago at the earliest.
   */
  async authenticate(token: string): Promise<Caller | 'expired' | undefined> {
    const keyId = sha256(token);
    const caller = await this.#callers.read(keyId, () => this.#find(keyId));
    return caller !== undefined && hasEnded(caller) ? 'expired' : caller;
  }

  /** Whether the key is there now and has not expired. */
  async isValid(keyId: string): Promise<boolean> {
    const caller = await this.#find(keyId);
    return caller !== undefined && !hasEnded(caller);
  }

  /** The same, as of `DIRECTORY_LIMITS.apiKeyRememberedMs` ago at the earliest. */
  async isLive(keyId: string): Promise<boolean> {
    const caller = await this.#callers.read(keyId, () => this.#find(keyId));
    return caller !== undefined && !hasEnded(caller);
  }

  async #find(keyId: string): Promise<Caller | undefined> {
    const [accountId, organization, scopes, expiresAt] = await this.#redis.hmget(
      keys.apiKey(keyId),
      'accountId',
      'organization',
      'scopes',
      'expiresAt',
    );
    if (typeof accountId !== 'string' || typeof organization !== 'string') return undefined;
    const caller = { accountId, organization, keyId, scopes: toScopes(scopes) };
    return typeof expiresAt === 'string' ? { ...caller, endsAt: Date.parse(expiresAt) } : caller;
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
    this.#callers.forget(keyId);
    await this.#redis.zrem(keys.apiKeys(accountId), orderedMember(record.createdAt, keyId));
    return true;
  }
}
