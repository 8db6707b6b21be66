import type { Caller } from '../../../shared/directory/api-keys.ts';
import { AppError } from '../../../shared/errors.ts';
import { newSandboxId } from '../../../shared/ids.ts';
import type { JobPayload } from '../../../shared/jobs/jobs.ts';
import { API_LIMITS } from '../limits.ts';
import { parseNetworkPolicy } from '../../../shared/network/parse-policy.ts';
import type { CreateSandbox } from '../../../shared/schemas/sandbox-input.ts';
import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import type { SnapshotRecord } from '../../../shared/schemas/snapshot-record.ts';
import { beginSandbox } from './begin-sandbox.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import { withClaimedName } from './claim-sandbox-name.ts';
import type { Deps } from '../../region/deps.ts';
import { findHost } from '../../region/find-host.ts';
import { findSnapshot } from '../../region/find-snapshot.ts';
import { requireMountScope } from '../../http/key-rights.ts';
import { bringDisks } from './place-near-disks.ts';
import { waitMsOf } from './sandbox-actions.ts';
import { checkEnvironment, copyHookOf } from './sandbox-input.ts';

/** A caller's request, and the name of the snapshot. */
type Input = CreateSandbox & { readonly snapshot: string; readonly wait: boolean };

/** @throws AppError `bad_request` for what only the snapshot can say */
function checkShape(
  {
    base_image: baseImage,
    image_id: imageId,
    vcpu_count: vcpus,
    mem_size_mib: memory,
    mounts,
  }: Input,
  { config: { vcpuCount, memSizeMib } }: SnapshotRecord,
): void {
  if (baseImage !== undefined || imageId !== undefined) {
    throw new AppError('bad_request', 'snapshot excludes base_image and image_id');
  }
  if (mounts !== undefined) {
    throw new AppError('bad_request', 'the sandboxes of a snapshot mount its disks: omit mounts');
  }
  if ((vcpus ?? vcpuCount) === vcpuCount && (memory ?? memSizeMib) === memSizeMib) return;
  const size = `vcpu_count ${vcpuCount} and mem_size_mib ${memSizeMib}`;
  throw new AppError('bad_request', `the sandboxes of this snapshot have ${size}: omit both`);
}

/** The fields of the job that the caller decides; the host takes others from the snapshot. */
function changesOf(input: Input): Partial<JobPayload<'sandbox.fromSnapshot'>> {
  const { env, network, max_ttl_seconds: maxTtl, idle_ttl_seconds: idleTtl } = input;
  const { max_concurrent_execs: execs, enable_service_ingress: ingress } = input;
  return {
    ...(maxTtl === undefined ? {} : { maxTtlSeconds: maxTtl }),
    ...(idleTtl === undefined ? {} : { idleTtlSeconds: idleTtl }),
    ...(execs === undefined ? {} : { maxConcurrentExecs: execs }),
    ...(ingress === undefined ? {} : { enableServiceIngress: ingress }),
    ...copyHookOf(input.copy_hook),
    ...(env === undefined ? {} : { environment: env }),
    ...(network === undefined ? {} : { network: parseNetworkPolicy(network) }),
  };
}

/**
 * Creates a sandbox from a snapshot, on the host that holds it (docs/snapshots.md). The creation
 * goes on when the caller hangs up.
 * @returns the sandbox once its host has journalled it, with `wait` once it runs, if that is soon
 * @throws AppError `bad_request`, `not_found`, `insufficient_scope`, `snapshot_not_ready`,
 *   `sandbox_name_conflict`, `sandbox_limit_reached`, `no_capacity`, `host_full`, `unavailable`,
 *   `timeout`; nothing remains then
 */
export async function createFromSnapshot(
  deps: Deps,
  caller: Caller,
  input: Input,
  { requestId }: RequestContext,
): Promise<SandboxRecord> {
  const { accountId } = caller;
  const snapshot = await findSnapshot(deps, accountId, input.snapshot);
  requireMountScope(caller, snapshot.config);
  checkShape(input, snapshot);
  checkEnvironment(input.env ?? {});
  const changes = changesOf(input);
  if (snapshot.status !== 'ready') {
    const why = snapshot.failureReason ?? 'it is being made; try again';
    throw new AppError('snapshot_not_ready', `snapshot ${snapshot.name} is not ready: ${why}`);
  }
  const { hostId, id: snapshotId } = snapshot;
  await findHost(deps, hostId, `snapshot ${snapshotId}`);
  await bringDisks(deps, { accountId, hostId }, snapshot.config.mounts ?? [], { requestId });
  const sandbox = { accountId, sandboxId: newSandboxId() };
  const { vcpuCount: vcpus, memSizeMib: memoryMib } = snapshot.config;
  const share = { vcpus, memoryMib };
  return withClaimedName(deps, { ...sandbox, name: input.name, share }, async (name) => {
    // Before the sandbox is there, so that no crash leaves one without the ports that it was to
    // have.
    const ports = input.ports ?? [];
    if (ports.length > 0) await deps.directory.sandboxRoutes.prepare(sandbox, caller.keyId, ports);
    const payload = { ...sandbox, ...changes, snapshotId, name, waitMs: waitMsOf(input.wait) };
    const deadlineAt = Date.now() + API_LIMITS.sandboxBeginMs;
    const call = { kind: 'sandbox.fromSnapshot' as const, payload, hostId, requestId, deadlineAt };
    return beginSandbox(deps, sandbox, call);
  });
}
