import type { RedisClient } from './redis-client.ts';
import { RateLimiterRedis, RateLimiterRes } from 'rate-limiter-flexible';
import { DIRECTORY_LIMITS } from './limits.ts';
import { RememberedReads } from '../remembered-reads.ts';
import { type AccountLimits, AccountLimitSettings, type LimitReached } from './account-limits.ts';
import { sumDiskBytes } from './disk-scripts.ts';
import { keys } from './keys.ts';
import { Script } from './script.ts';

/** The rest of an account's requests in this second. */
export interface RequestQuota {
  readonly max: number;
  readonly left: number;
  readonly resetMs: number;
  readonly isExceeded: boolean;
}

/**
 * The limits of accounts that bind what is done rather than what is made: requests, and writing to
 * disks. A change of the limits is noticed within seconds.
 */
export class AccountQuotas {
  readonly #redis: RedisClient;
  readonly #region: string;
  readonly #settings: AccountLimitSettings;
  readonly #limits = new RememberedReads<AccountLimits>({
    forMs: DIRECTORY_LIMITS.accountLimitsReadEveryMs,
    max: DIRECTORY_LIMITS.accountsRememberedMax,
  });
  /**
   * Until when requests of an account are refused without asking Redis, by `performance.now()`. The
   * library can do that as well, but by the wall clock: one that is set back would refuse them for
   * as long.
   */
  readonly #refusedUntil = new Map<string, number>();
  /** By requests per second. */
  readonly #limiters = new Map<number, RateLimiterRedis>();

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#region = region;
    this.#settings = new AccountLimitSettings(redis);
  }

  /** Counts a request. @returns undefined when the requests of the account are not limited */
  async takeRequest(accountId: string): Promise<RequestQuota | undefined> {
    const { requestsPerSecond: max } = await this.#limitsOf(accountId);
    if (max === undefined) return undefined;
    const resetMs = (this.#refusedUntil.get(accountId) ?? 0) - performance.now();
    if (resetMs > 0) return { max, left: 0, resetMs: Math.ceil(resetMs), isExceeded: true };
    try {
      const taken = await this.#limiterOf(max).consume(keys.accountRequests(accountId));
      return quotaOf(max, taken, false);
    } catch (thrown) {
      if (!(thrown instanceof RateLimiterRes)) throw thrown;
      this.#refuse(accountId, thrown.msBeforeNext);
      return quotaOf(max, thrown, true);
    }
  }

  /** Whether the disks of the account hold as many bytes as they may. */
  async whyNotWrite(accountId: string): Promise<LimitReached | undefined> {
    const { diskBytes: max } = await this.#limitsOf(accountId);
    if (max === undefined) return undefined;
    const prefix = keys.disk(this.#region, accountId, '');
    const list = keys.disks(this.#region, accountId);
    const used = Number(await sumDiskBytes.run(this.#redis, [list], [prefix]));
    return used < max ? undefined : { limit: 'diskBytes', max, used };
  }

  #refuse(accountId: string, ms: number): void {
    if (this.#refusedUntil.size >= DIRECTORY_LIMITS.accountsRememberedMax)
      this.#refusedUntil.clear();
    this.#refusedUntil.set(accountId, performance.now() + ms);
  }

  #limitsOf(accountId: string): Promise<AccountLimits> {
    return this.#limits.read(accountId, () => this.#settings.get(accountId));
  }

  #limiterOf(points: number): RateLimiterRedis {
    const known = this.#limiters.get(points);
    if (known !== undefined) return known;
    const limiter = new RateLimiterRedis({
      storeClient: storeOf(this.#redis),
      points,
      duration: 1,
      keyPrefix: '',
    });
    this.#limiters.set(points, limiter);
    return limiter;
  }
}

/**
 * A client for the library, which needs one method. Its script runs like all others here: ioredis
 * has a way of its own with scripts, which breaks the pipelines that it makes by itself, and the
 * process with them.
 */
function storeOf(redis: RedisClient): object {
  let script: Script | undefined;
  return {
    defineCommand: (_name: string, { lua }: { readonly lua: string }) => {
      script = new Script(lua);
    },
    rlflxIncr: ([key = '', ...args]: string[]) => script?.run(redis, [key], args),
  };
}

const quotaOf = (max: number, result: RateLimiterRes, isExceeded: boolean): RequestQuota => ({
  max,
  left: Math.max(0, result.remainingPoints),
  resetMs: Math.max(0, result.msBeforeNext),
  isExceeded,
});
