import { quotaHeaders, tooManyRequests } from '../account-limits.ts';
import type { Deps } from '../../region/deps.ts';
import type { RequestContext } from './request-state.ts';

/**
 * Counts a request for its account, and says in the answer how many the account may still send.
 * @throws AppError `rate_limited`
 */
export async function takeRequest(
  ctx: RequestContext,
  { directory, usage }: Pick<Deps, 'directory' | 'usage'>,
  accountId: string,
): Promise<void> {
  usage.count(accountId, 'requests');
  const quota = await directory.accountQuotas.takeRequest(accountId);
  if (quota?.isExceeded === true) throw tooManyRequests(quota);
  if (quota !== undefined) ctx.set(quotaHeaders(quota));
}
