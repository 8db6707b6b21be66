import { AppError, type ErrorCode } from '../../shared/errors.ts';
import type { JobKind, JobPayload } from '../../shared/jobs.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { SandboxRecord } from '../../shared/schemas/sandbox-record.ts';
import type { Deps } from '../deps.ts';
import type { JobReply } from '../job-dispatch.ts';
import type { RequestContext } from './call-handler.ts';
import { findSandbox } from './find-sandbox.ts';

export interface SandboxOfAccount {
  readonly accountId: string;
  readonly sandboxId: string;
}

export const waitMsOf = (wait: boolean): number => (wait ? LIMITS.sandboxWaitMsMax : 0);

/**
 * Has the sandbox's own host do something. What it begins goes on when the caller hangs up.
 * @throws AppError what the host says; `unavailable` while it is away
 */
export async function callOwner<K extends JobKind>(
  { hub, jobs }: Deps,
  { id, hostId }: SandboxRecord,
  job: { kind: K; payload: JobPayload<K> },
  { requestId }: RequestContext,
): Promise<JobReply<K>> {
  if (!hub.hosts.some((host) => host.hostId === hostId)) {
    throw new AppError('unavailable', `the host of sandbox ${id} is away now; try again later`);
  }
  const deadlineAt = Date.now() + LIMITS.sandboxBeginMs;
  return jobs.call({ ...job, hostId, requestId, deadlineAt });
}

/**
 * Starts or stops a sandbox; what that comes to in its state, the lifecycle table says. Idempotent.
 * @returns the sandbox, as a rule still on its way unless the answer waits
 * @throws AppError `not_found`, `unavailable`, `timeout`, and the refusals of the table
 */
export async function commandSandbox(
  deps: Deps,
  ref: SandboxOfAccount,
  { command, wait }: { command: 'start' | 'stop'; wait: boolean },
  context: RequestContext,
): Promise<SandboxRecord> {
  const record = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const payload = { ...ref, command, waitMs: waitMsOf(wait) };
  const { result } = await callOwner(deps, record, { kind: 'sandbox.command', payload }, context);
  if (result.sandbox === undefined) {
    throw new AppError('not_found', `sandbox ${ref.sandboxId} not found`);
  }
  return result.sandbox;
}

const MAY_BE_DONE: ReadonlySet<ErrorCode> = new Set(['unavailable', 'outcome_unknown', 'timeout']);

/**
 * Deletes a sandbox at rest with its disk.
 * @throws AppError `not_found`, `unavailable`, `timeout`, `sandbox_not_stopped`
 */
export async function deleteSandbox(
  deps: Deps,
  ref: SandboxOfAccount,
  context: RequestContext,
): Promise<void> {
  const record = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const payload = { ...ref, command: 'delete' as const, waitMs: LIMITS.sandboxWaitMsMax };
  try {
    await callOwner(deps, record, { kind: 'sandbox.command', payload }, context);
  } catch (error) {
    if (!(error instanceof AppError) || !MAY_BE_DONE.has(error.code)) throw error;
    // Repeated, it would answer 404: a deletion that was done must not look like a failure.
    const present = await deps.directory.sandboxes.get(ref.accountId, ref.sandboxId);
    if (present !== undefined) throw error;
  }
}
