import { AppError } from '../../../shared/errors.ts';
import type { SandboxTimeout } from '../../../shared/schemas/sandbox-input.ts';
import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import type { Deps } from '../../region/deps.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import { callOwner, type SandboxOfAccount } from './sandbox-actions.ts';
import { findSandbox } from '../../region/find-sandbox.ts';

/**
 * Sets how long a sandbox may run or be idle before it is paused; what is not given stays.
 * @throws AppError `bad_request`, `not_found`, `unavailable`, `timeout`
 */
export async function setSandboxLimits(
  deps: Deps,
  ref: SandboxOfAccount,
  { timeout: timeoutSeconds, idle_ttl_seconds: idleTtlSeconds }: SandboxTimeout,
  context: RequestContext,
): Promise<SandboxRecord> {
  if (timeoutSeconds === undefined && idleTtlSeconds === undefined) {
    throw new AppError('bad_request', 'body: give timeout, idle_ttl_seconds, or both');
  }
  const record = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const payload = {
    ...ref,
    ...(timeoutSeconds === undefined ? {} : { timeoutSeconds }),
    ...(idleTtlSeconds === undefined ? {} : { idleTtlSeconds }),
  };
  return (await callOwner(deps, record, { kind: 'sandbox.setLimits', payload }, context)).result
    .sandbox;
}
