import { accountLimitUnits, type LimitReached } from '../../shared/directory/account-limits.ts';
import type { RequestQuota } from '../../shared/directory/account-quotas.ts';
import { RefusedRequest } from '../region/refused-request.ts';

/** The refusal of something that would exceed what the operator lets the account have. */
export function limitReached({ limit, max, used }: LimitReached): RefusedRequest {
  const unit = accountLimitUnits[limit];
  return new RefusedRequest(
    'account_limit_reached',
    `this would exceed the limit of the account (${unit}: ${used} of ${max} in use); delete something first, or ask the operator`,
    { headers: { 'ratelimit-policy': `"${limit}";q=${max}`, ratelimit: `"${limit}";r=0` } },
  );
}

const SECOND_MS = 1000;

/** Headers about the rest of the account's requests (draft-ietf-httpapi-ratelimit-headers). */
export function quotaHeaders({ max, left, resetMs }: RequestQuota): Record<string, string> {
  const seconds = Math.max(1, Math.ceil(resetMs / SECOND_MS));
  return {
    'ratelimit-policy': `"requests";q=${max};w=1`,
    ratelimit: `"requests";r=${left};t=${seconds}`,
  };
}

/** The refusal of a request beyond them. */
export const tooManyRequests = (quota: RequestQuota): RefusedRequest =>
  new RefusedRequest(
    'rate_limited',
    `the account sends more requests than it may, ${quota.max} per second; try again in a second`,
    { headers: { ...quotaHeaders(quota), 'retry-after': '1' } },
  );
