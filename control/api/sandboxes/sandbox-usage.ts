import type { SandboxUsage as Measured } from '../../../shared/jobs/sandbox-kinds.ts';
import type { SandboxUsage } from '../../../shared/schemas/sandbox-usage.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import type { Deps } from '../../region/deps.ts';
import { findSandbox } from '../../region/find-sandbox.ts';
import { callOwner, type SandboxOfAccount } from './sandbox-actions.ts';

/** Leaves out figures that were not measured. */
const present = (usage: Measured): SandboxUsage => {
  const { cpuSeconds, memoryBytes, storedBytes, receivedBytes, sentBytes } = usage;
  return {
    measured_at: new Date().toISOString(),
    ...(cpuSeconds === undefined ? {} : { cpu_seconds: cpuSeconds }),
    ...(memoryBytes === undefined ? {} : { memory_bytes: memoryBytes }),
    stored_bytes: storedBytes,
    ...(receivedBytes === undefined ? {} : { network_received_bytes: receivedBytes }),
    ...(sentBytes === undefined ? {} : { network_sent_bytes: sentBytes }),
  };
};

/**
 * Has the host of a sandbox measure what it uses now.
 * @throws AppError `not_found`, `unavailable`, `timeout`
 */
export async function measureSandbox(
  deps: Deps,
  ref: SandboxOfAccount,
  context: RequestContext,
): Promise<SandboxUsage> {
  const record = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const job = { kind: 'sandbox.usage' as const, payload: ref };
  return present((await callOwner(deps, record, job, context)).result.usage);
}
