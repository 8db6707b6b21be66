import type { RedisClient } from './redis-client.ts';
import { AppError } from '../errors.ts';
import { newAccountId } from '../ids.ts';
import { keys } from './keys.ts';

export interface Account {
  readonly id: string;
  /** Shown as a disk's `organization`. */
  readonly name: string;
  readonly createdAt: string;
  /** The preview regions in which the account may create disks. */
  readonly previewRegions: readonly string[];
}

/** The accounts of the cluster. The operator makes them; the HTTP API only reads them. */
export class Accounts {
  readonly #redis: RedisClient;

  constructor(redis: RedisClient) {
    this.#redis = redis;
  }

  /** @throws AppError `bad_request` when the name is taken */
  async create(name: string): Promise<Account> {
    const account: Account = {
      id: newAccountId(),
      name,
      createdAt: new Date().toISOString(),
      previewRegions: [],
    };
    await this.restore(account);
    return account;
  }

  /** Writes an account with a known id. The name is written first, because only it can clash. */
  async restore(account: Account): Promise<void> {
    const { id, name, createdAt, previewRegions } = account;
    const claimed = await this.#redis.hsetnx(keys.accountNames(), name, id);
    if (claimed === 0 && (await this.#redis.hget(keys.accountNames(), name)) !== id) {
      throw new AppError('bad_request', `an account named ${name} exists`);
    }
    await this.#redis.hset(keys.account(id), { id, name, createdAt });
    if (previewRegions.length > 0) {
      await this.#redis.sadd(keys.accountRegions(id), ...previewRegions);
    }
  }

  async get(accountId: string): Promise<Account | undefined> {
    const [record, regions] = await Promise.all([
      this.#redis.hgetall(keys.account(accountId)),
      this.#redis.smembers(keys.accountRegions(accountId)),
    ]);
    const { id, name, createdAt } = record;
    if (id === undefined || name === undefined || createdAt === undefined) return undefined;
    return { id, name, createdAt, previewRegions: regions.sort() };
  }

  async list(): Promise<Account[]> {
    const ids = Object.values(await this.#redis.hgetall(keys.accountNames()));
    const accounts = await Promise.all(ids.map((id) => this.get(id)));
    return accounts.filter((account) => account !== undefined);
  }

  async setRegionAccess(accountId: string, region: string, allowed: boolean): Promise<void> {
    const key = keys.accountRegions(accountId);
    await (allowed ? this.#redis.sadd(key, region) : this.#redis.srem(key, region));
  }

  async hasRegionAccess(accountId: string, region: string): Promise<boolean> {
    return (await this.#redis.sismember(keys.accountRegions(accountId), region)) === 1;
  }
}
