import { DIRECTORY_LIMITS } from './limits.ts';
import { keys } from './keys.ts';
import type { RedisClient } from './redis-client.ts';
import { Script } from './script.ts';

/** Limits on the number of deliveries. */
interface DeliveryBounds {
  readonly perAccount: number;
  readonly total: number;
}

const BOUNDS: DeliveryBounds = {
  perAccount: DIRECTORY_LIMITS.webhooksQueuedPerAccountMax,
  total: DIRECTORY_LIMITS.webhooksQueuedMax,
};

// KEYS all deliveries, those of the account: zsets of job ids by the time at which they count no
// more.
const EXPIRE = `
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  for _, key in ipairs(KEYS) do redis.call('ZREMRANGEBYSCORE', key, '-inf', now) end
`;
// ARGV[1] time to live, per account, total, then job ids. As with idempotency keys: an account has
// at most its own bound, and never more than is then left for all others.
const add = new Script(`
  ${EXPIRE}
  local more = #ARGV - 3
  local held = redis.call('ZCARD', KEYS[2]) + more
  local left = tonumber(ARGV[3]) - redis.call('ZCARD', KEYS[1]) - more
  if held > tonumber(ARGV[2]) or held > left then return 0 end
  for _, key in ipairs(KEYS) do
    for i = 4, #ARGV do redis.call('ZADD', key, now + ARGV[1], ARGV[i]) end
    redis.call('PEXPIRE', key, ARGV[1])
  end
  return 1
`);
// ARGV job ids
const remove = new Script(`
  for _, key in ipairs(KEYS) do redis.call('ZREM', key, unpack(ARGV)) end
  return 1
`);
const count = new Script(`
  ${EXPIRE}
  return redis.call('ZCARD', KEYS[2])
`);

/**
 * Counts the deliveries to webhooks that wait in the queue of a region, so that one account cannot
 * leave no space in it for the next. A delivery is counted before it is queued and until it is
 * over; if a crash comes between, it ends to count by itself.
 */
export class QueuedDeliveries {
  readonly #redis: RedisClient;
  readonly #region: string;
  readonly #bounds: DeliveryBounds;

  constructor(redis: RedisClient, region: string, bounds: DeliveryBounds = BOUNDS) {
    this.#redis = redis;
    this.#region = region;
    this.#bounds = bounds;
  }

  /** @returns false when the account may not have so many more: none of them counts then */
  async add(accountId: string, jobIds: readonly string[]): Promise<boolean> {
    const { perAccount, total } = this.#bounds;
    const args = [DIRECTORY_LIMITS.webhookQueuedMsMax, perAccount, total, ...jobIds];
    return (await add.run(this.#redis, this.#keys(accountId), args)) === 1;
  }

  async remove(accountId: string, jobIds: readonly string[]): Promise<void> {
    await remove.run(this.#redis, this.#keys(accountId), [...jobIds]);
  }

  async count(accountId: string): Promise<number> {
    return Number(await count.run(this.#redis, this.#keys(accountId), []));
  }

  #keys(accountId: string): string[] {
    return [keys.queuedDeliveries(this.#region), keys.queuedDeliveriesOf(this.#region, accountId)];
  }
}
