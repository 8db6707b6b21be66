import type { RedisClient } from './redis-client.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { SUM_BYTES } from './disk-scripts.ts';
import { keys } from './keys.ts';
import { Script } from './script.ts';

/** The measured usage of an account in a month. */
export interface UsageFigures {
  readonly vcpuSeconds: number;
  readonly memoryGibSeconds: number;
  readonly storageByteHours: number;
  readonly requests: number;
  readonly execs: number;
}

const names = [
  'vcpuSeconds',
  'memoryGibSeconds',
  'storageByteHours',
  'requests',
  'execs',
] as const satisfies readonly (keyof UsageFigures)[];

/** `YYYY-MM` in UTC. */
export const monthOf = (time: number): string => new Date(time).toISOString().slice(0, 7);

// KEYS usage of the month, when storage was measured, disks; ARGV prefix of the keys of disks, the
// longest time that counts between two measurements in seconds, how long the month is kept in
// milliseconds. Several control nodes measure: each counts the time since the last of them did.
const addStorage = new Script(`
  ${SUM_BYTES}
  local time = redis.call('TIME')
  local now = time[1] + time[2] / 1000000
  local elapsed = now - tonumber(redis.call('GET', KEYS[2]) or now)
  redis.call('SET', KEYS[2], string.format('%.3f', now))
  if elapsed <= 0 or elapsed > tonumber(ARGV[2]) then return 0 end
  local bytes = tonumber(sumBytes(KEYS[3], ARGV[1]))
  if bytes == 0 then return 0 end
  local byteHours = string.format('%.3f', bytes * elapsed / 3600)
  redis.call('HINCRBYFLOAT', KEYS[1], 'storageByteHours', byteHours)
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return 1
`);

/** Usage of each account, by months (docs/accounts.md, Usage). */
export class UsageRecords {
  readonly #redis: RedisClient;
  readonly #region: string;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#region = region;
  }

  /** For hosts. */
  async addTime(
    accountId: string,
    sums: Pick<UsageFigures, 'vcpuSeconds' | 'memoryGibSeconds'>,
  ): Promise<void> {
    await this.#add(accountId, (key, transaction) => {
      transaction.hincrbyfloat(key, 'vcpuSeconds', sums.vcpuSeconds);
      transaction.hincrbyfloat(key, 'memoryGibSeconds', sums.memoryGibSeconds);
    });
  }

  /** For control nodes: what was counted since the last time. */
  async addCounts(
    accountId: string,
    { requests, execs }: Pick<UsageFigures, 'requests' | 'execs'>,
  ): Promise<void> {
    await this.#add(accountId, (key, transaction) => {
      transaction.hincrby(key, 'requests', requests);
      transaction.hincrby(key, 'execs', execs);
    });
  }

  /** Counts the time since the last call with what is on the account's disks now. */
  async addStorage(accountId: string): Promise<void> {
    await addStorage.run(
      this.#redis,
      [
        this.#keyOfNow(accountId),
        keys.usageMeasuredAt(this.#region, accountId),
        keys.disks(this.#region, accountId),
      ],
      [
        keys.disk(this.#region, accountId, ''),
        (DIRECTORY_LIMITS.storageMeasuredEveryMs * 3) / 1000,
        DIRECTORY_LIMITS.usageKeptMs,
      ],
    );
  }

  /** @param month as {@link monthOf} has it */
  async get(accountId: string, month: string): Promise<UsageFigures> {
    const key = keys.usage(this.#region, accountId, month);
    const values = await this.#redis.hmget(key, ...names);
    const figures = names.map((name, i) => [name, Number(values[i] ?? 0)]);
    return Object.fromEntries(figures) as UsageFigures;
  }

  async #add(
    accountId: string,
    change: (key: string, transaction: ReturnType<RedisClient['multi']>) => void,
  ): Promise<void> {
    const key = this.#keyOfNow(accountId);
    const transaction = this.#redis.multi();
    change(key, transaction);
    transaction.pexpire(key, DIRECTORY_LIMITS.usageKeptMs);
    const results = await transaction.exec();
    for (const [error] of results ?? []) if (error !== null) throw error;
  }

  #keyOfNow(accountId: string): string {
    return keys.usage(this.#region, accountId, monthOf(Date.now()));
  }
}
