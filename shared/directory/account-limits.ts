import type { RedisClient } from './redis-client.ts';
import { keys } from './keys.ts';

/** Limits that the operator may set for an account, and their units. */
export const accountLimitUnits = {
  /** The sum over all sandboxes, whether they run or not. */
  vcpus: 'vCPUs',
  memoryMib: 'MiB of memory',
  sandboxes: 'sandboxes',
  disks: 'disks',
  /** In use on all disks together, as it was last measured. */
  diskBytes: 'bytes on disks',
  requestsPerSecond: 'requests per second',
} as const;
export type AccountLimit = keyof typeof accountLimitUnits;
export const accountLimitNames = Object.keys(accountLimitUnits) as AccountLimit[];
/** An absent limit does not apply. */
export type AccountLimits = Readonly<Partial<Record<AccountLimit, number>>>;

/** A limit that something new would exceed. */
export interface LimitReached {
  readonly limit: AccountLimit;
  readonly max: number;
  readonly used: number;
}

/** Parses the answer of scripts that refuse work over a limit: `over <limit> <max> <used>`. */
export function readLimitReached(answer: unknown): LimitReached | undefined {
  const [, limit, max, used] = /^over (\w+) (\d+) (\d+)$/u.exec(String(answer)) ?? [];
  return limit === undefined
    ? undefined
    : { limit: limit as AccountLimit, max: Number(max), used: Number(used) };
}

/**
 * The limits that the operator has set for accounts. Scripts that create things read them, and
 * count what is there, in the step in which they create: nothing is counted apart, so nothing can
 * drift.
 */
export class AccountLimitSettings {
  readonly #redis: RedisClient;

  constructor(redis: RedisClient) {
    this.#redis = redis;
  }

  async get(accountId: string): Promise<AccountLimits> {
    const values = await this.#redis.hmget(keys.accountLimits(accountId), ...accountLimitNames);
    const set = accountLimitNames.flatMap((name, i): [AccountLimit, number][] =>
      typeof values[i] === 'string' ? [[name, Number(values[i])]] : [],
    );
    return Object.fromEntries(set);
  }

  /** @param changes null takes a limit away; what is absent stays as it is */
  async change(
    accountId: string,
    changes: Readonly<Partial<Record<AccountLimit, number | null>>>,
  ): Promise<void> {
    const key = keys.accountLimits(accountId);
    const transaction = this.#redis.multi();
    for (const [name, value] of Object.entries(changes)) {
      if (value === null) transaction.hdel(key, name);
      else transaction.hset(key, name, value);
    }
    await transaction.exec();
  }
}
