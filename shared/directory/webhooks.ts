import type { ApiKeys } from './api-keys.ts';
import type { RedisClient } from './redis-client.ts';
import { parseJson } from '../json.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import type { Webhook, WebhookDelivery } from '../schemas/webhook.ts';
import { keys } from './keys.ts';
import { Script } from './script.ts';

/** A webhook as stored; its secret is sealed. */
export interface WebhookRecord extends Webhook {
  /** The key that made it, with which it ends; absent in webhooks of earlier versions. */
  readonly keyId?: string;
  readonly sealedSecret: string;
}

// KEYS webhooks; ARGV id, record, limit
const add = new Script(`
  if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  return 1
`);

// KEYS webhooks; ARGV id, record, next record
const replace = new Script(`
  if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  return 1
`);

/**
 * Where accounts have events sent, and what became of the latest attempts. A webhook whose key has
 * expired or was deleted is removed by whoever comes across it.
 */
export class Webhooks {
  readonly #redis: RedisClient;
  readonly #apiKeys: Pick<ApiKeys, 'isLive'>;

  constructor(redis: RedisClient, apiKeys: Pick<ApiKeys, 'isLive'>) {
    this.#redis = redis;
    this.#apiKeys = apiKeys;
  }

  /** @returns false when the account has as many as it may */
  async add(accountId: string, record: WebhookRecord): Promise<boolean> {
    await this.list(accountId); // Ended ones do not count.
    const args = [record.id, JSON.stringify(record), DIRECTORY_LIMITS.webhooksPerAccountMax];
    return (await add.run(this.#redis, [keys.webhooks(accountId)], args)) === 1;
  }

  async get(accountId: string, id: string): Promise<WebhookRecord | undefined> {
    const text = await this.#redis.hget(keys.webhooks(accountId), id);
    if (text === null) return undefined;
    const record = parseJson(text) as WebhookRecord;
    return (await this.#hasEnded(accountId, record)) ? undefined : record;
  }

  /** Oldest first. */
  async list(accountId: string): Promise<WebhookRecord[]> {
    const texts = await this.#redis.hvals(keys.webhooks(accountId));
    const records = texts.map((text) => parseJson(text) as WebhookRecord);
    const ended = await Promise.all(records.map((record) => this.#hasEnded(accountId, record)));
    return records.filter((_, at) => ended[at] === false).sort((a, b) => (a.id < b.id ? -1 : 1));
  }

  async #hasEnded(accountId: string, { id, keyId }: WebhookRecord): Promise<boolean> {
    if (keyId === undefined || (await this.#apiKeys.isLive(keyId))) return false;
    await this.remove(accountId, id);
    return true;
  }

  /** Replaces a webhook's record. @returns false when it is not as it was any more */
  async replace(accountId: string, former: WebhookRecord, next: WebhookRecord): Promise<boolean> {
    const args = [former.id, JSON.stringify(former), JSON.stringify(next)];
    return (await replace.run(this.#redis, [keys.webhooks(accountId)], args)) === 1;
  }

  /** @returns false when there is none */
  async remove(accountId: string, id: string): Promise<boolean> {
    const removed = await this.#redis.hdel(keys.webhooks(accountId), id);
    await this.#redis.del(keys.webhookDeliveries(accountId, id));
    return removed === 1;
  }

  async noteDelivery(accountId: string, id: string, delivery: WebhookDelivery): Promise<void> {
    const key = keys.webhookDeliveries(accountId, id);
    await this.#redis
      .multi()
      .lpush(key, JSON.stringify(delivery))
      .ltrim(key, 0, DIRECTORY_LIMITS.webhookDeliveriesKept - 1)
      .pexpire(key, DIRECTORY_LIMITS.webhookDeliveriesKeptMs)
      .exec();
  }

  /** The latest attempts, newest first. */
  async deliveries(accountId: string, id: string): Promise<WebhookDelivery[]> {
    const texts = await this.#redis.lrange(keys.webhookDeliveries(accountId, id), 0, -1);
    return texts.map((text) => parseJson(text) as WebhookDelivery);
  }
}
