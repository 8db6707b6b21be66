import { AppError, type ErrorCode } from '../../../shared/errors.ts';
import type { JobKind, JobPayload } from '../../../shared/jobs/jobs.ts';
import { API_LIMITS } from '../limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { verdictOn } from '../../../shared/sandbox-lifecycle.ts';
import type { SandboxMountInput } from '../../../shared/schemas/sandbox-mount.ts';
import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import type { Deps } from '../../region/deps.ts';
import type { Host } from '../../region/known-hosts.ts';
import type { JobReply } from '../../region/job-dispatch.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import { deleteOnHost } from '../../region/delete-on-host.ts';
import { findHost } from '../../region/find-host.ts';
import { findSandbox } from '../../region/find-sandbox.ts';
import { bringDisks } from './place-near-disks.ts';
import { copyHookOf } from './sandbox-input.ts';
import { sandboxMounts } from '../disks/attachments.ts';

export interface SandboxOfAccount {
  readonly accountId: string;
  readonly sandboxId: string;
}

/** The actions that the owner carries out by one kind of job; fork and delete have their own. */
type OwnerAction = JobPayload<'sandbox.action'>['action'];

/** How long the answer waits for what the request began. */
export const waitMsOf = (wait: boolean): number => (wait ? SCHEMA_LIMITS.sandboxWaitMsMax : 0);

/**
 * The same when the caller did not say. A stop is nearly always over at once. A pause is answered
 * as soon as it has begun: public clients pause a sandbox to fork it, and resume it afterwards only
 * if the answer was `pausing`, which tells them that it ran before.
 */
const unaskedWaitMs: Readonly<Record<OwnerAction, number>> = {
  start: 0,
  resume: 0,
  pause: 0,
  stop: API_LIMITS.sandboxBriefWaitMs,
};

/**
 * The host that owns the sandbox.
 * @throws AppError `unavailable` while the host cannot be reached
 */
export function findOwner(deps: Deps, { id, hostId }: SandboxRecord): Promise<Host> {
  return findHost(deps, hostId, `sandbox ${id}`);
}

/**
 * Sends a job to the sandbox's own host. What the host begins continues when the caller hangs up.
 * When another host has the sandbox by now, the former one has begun nothing, and the job goes
 * there.
 * @throws AppError the host's error; `unavailable` while the host cannot be reached, or the sandbox
 *   is between two hosts
 */
export async function callOwner<K extends JobKind>(
  deps: Deps,
  record: SandboxRecord,
  job: { kind: K; payload: JobPayload<K> },
  { requestId }: RequestContext,
): Promise<JobReply<K>> {
  const call = (hostId: string): Promise<JobReply<K>> => {
    const deadlineAt = Date.now() + API_LIMITS.sandboxBeginMs;
    return deps.jobs.call({ ...job, hostId, requestId, deadlineAt });
  };
  try {
    await findOwner(deps, record);
    return await call(record.hostId);
  } catch (error) {
    if (!(error instanceof AppError) || !GONE_FROM_HOST.has(error.code)) throw error;
    const present = await deps.directory.sandboxes.get(record.accountId, record.id);
    if (present === undefined || present.hostId === record.hostId) throw error;
    await findOwner(deps, present);
    return call(present.hostId);
  }
}

/** With these a host refuses what it no longer has, or is not there to do. */
const GONE_FROM_HOST: ReadonlySet<ErrorCode> = new Set(['not_found', 'unavailable']);

/** Whether the action would start a machine, as far as the directory tells. */
const startsMachine = ({ state }: SandboxRecord, action: OwnerAction): boolean =>
  (action === 'start' || action === 'resume') && verdictOn(state, action).kind === 'begin';

/**
 * Starts, stops, pauses or resumes a sandbox; the lifecycle table says what an action does in each
 * state. Idempotent.
 * @param action with `wait` undefined, the answer to a stop waits for a moment
 * @returns the sandbox as it is when the answer is sent, possibly still in transition
 * @throws AppError `not_found`, `unavailable`, `timeout`, `disk_in_use` when another host uses a
 *   disk that it mounts, and the refusals of the table
 */
export async function actOnSandbox(
  deps: Deps,
  ref: SandboxOfAccount,
  {
    action,
    wait,
    mounts,
    copyHook: hook,
  }: {
    readonly action: OwnerAction;
    readonly wait: boolean | undefined;
    /** Replace those of the sandbox; with `start` only. */
    readonly mounts?: readonly SandboxMountInput[] | undefined;
    /** Replaces that of its copies; with `start` only. */
    readonly copyHook?: string | undefined;
  },
  context: RequestContext,
): Promise<SandboxRecord> {
  const replaced = mounts && sandboxMounts(mounts);
  const copyHook = copyHookOf(hook);
  const record = await findSandbox(deps, ref.accountId, ref.sandboxId);
  if (startsMachine(record, action)) {
    await bringDisks(deps, record, replaced ?? record.config.mounts ?? [], context);
  }
  const payload = {
    ...ref,
    action,
    ...(replaced === undefined ? {} : { mounts: replaced }),
    ...copyHook,
    waitMs: wait === undefined ? unaskedWaitMs[action] : waitMsOf(wait),
  };
  return (await callOwner(deps, record, { kind: 'sandbox.action', payload }, context)).result
    .sandbox;
}

/**
 * Deletes a sandbox at rest with its disk.
 * @throws AppError `not_found`, `unavailable`, `timeout`, `sandbox_not_stopped`,
 *   `sandbox_has_forks`
 */
export async function deleteSandbox(
  deps: Deps,
  ref: SandboxOfAccount,
  context: RequestContext,
): Promise<void> {
  const record = await findSandbox(deps, ref.accountId, ref.sandboxId);
  const job = { kind: 'sandbox.delete' as const, payload: ref };
  await deleteOnHost({
    name: `sandbox ${ref.sandboxId}`,
    refusal: 'sandbox_has_forks',
    remove: async () => (await callOwner(deps, record, job, context)).result,
    find: () => deps.directory.sandboxes.get(ref.accountId, ref.sandboxId),
  });
}
