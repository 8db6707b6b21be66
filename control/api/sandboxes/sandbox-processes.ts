import type { SandboxProcess } from '../../../shared/schemas/sandbox-process.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import type { Deps } from '../../region/deps.ts';
import { findSandbox } from '../../region/find-sandbox.ts';
import { callOwner, type SandboxOfAccount } from './sandbox-actions.ts';

/**
 * Asks the host of a running sandbox for the processes that clients attach to. Does not count as a
 * use of it.
 * @throws AppError `not_found`, `sandbox_not_running`, `unavailable`, `timeout`
 */
export async function listSandboxProcesses(
  deps: Deps,
  ref: SandboxOfAccount,
  context: RequestContext,
): Promise<readonly SandboxProcess[]> {
  const record = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const job = { kind: 'sandbox.processes' as const, payload: ref };
  return (await callOwner(deps, record, job, context)).result.processes;
}
