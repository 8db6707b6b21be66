import type { Caller } from '../../../shared/directory/api-keys.ts';
import type { SandboxResources } from '../../../shared/directory/capacity.ts';
import { AppError, type ErrorCode } from '../../../shared/errors.ts';
import { newSandboxId } from '../../../shared/ids.ts';
import type { JobPayload } from '../../../shared/jobs/jobs.ts';
import { API_LIMITS } from '../limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { parseNetworkPolicy } from '../../../shared/network/parse-policy.ts';
import { needOf } from '../../../shared/directory/sandbox-need.ts';
import type { CreateSandbox } from '../../../shared/schemas/sandbox-input.ts';
import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import type { DiskEntry } from '../../../shared/directory/disk-record.ts';
import type { Deps } from '../../region/deps.ts';
import { moveDisksTo, refuseOfAbsent } from './place-near-disks.ts';
import { findMountedDisks, sandboxMounts } from '../disks/attachments.ts';
import { noSandboxCapacity, rankSandboxHosts } from '../../region/placement.ts';
import { LostHost } from '../../region/begin-on-host.ts';
import { beginSandbox } from './begin-sandbox.ts';
import { chooseImage } from './sandbox-image.ts';
import { linkDiskHosts, type RequestContext } from '../../region/call-disk-host.ts';
import { withClaimedName } from './claim-sandbox-name.ts';
import { createFromSnapshot } from './create-from-snapshot.ts';
import { waitMsOf } from './sandbox-actions.ts';
import { checkEnvironment, copyHookOf } from './sandbox-input.ts';
import { notePlacement, wishesOf } from './sandbox-wishes.ts';

/** A sandbox that is about to be created; name and host are still to be found. */
type Draft = Omit<JobPayload<'sandbox.create'>, 'name' | 'baseImage'>;

interface RankedHost {
  readonly hostId: string;
  /**
   * The image that the sandbox will show: the caller's reference, or what the host's image really
   * is.
   */
  readonly baseImage: string;
}

interface Placement {
  readonly need: SandboxResources;
  /** Best first. */
  readonly hosts: readonly RankedHost[];
  /** The disks that the sandbox mounts. */
  readonly disks: readonly DiskEntry[];
}

/** A host that answers with these has journalled nothing, so another host may be asked. */
const NOT_TAKEN: ReadonlySet<ErrorCode> = new Set([
  'no_capacity',
  'host_full',
  'not_enabled',
  'unavailable',
  'disk_in_use',
  'disk_moved',
]);

/** @throws AppError `bad_request` */
function networkOf({ network }: CreateSandbox): Pick<Draft, 'network'> {
  if (network === undefined) return {};
  const policy = parseNetworkPolicy(network);
  return { network: policy };
}

function draftOf(accountId: string, input: CreateSandbox & { readonly wait: boolean }): Draft {
  return {
    accountId,
    sandboxId: newSandboxId(),
    vcpuCount: input.vcpu_count ?? 1,
    memSizeMib: input.mem_size_mib ?? SCHEMA_LIMITS.sandboxMemMibDefault,
    maxTtlSeconds: input.max_ttl_seconds ?? SCHEMA_LIMITS.sandboxTtlSecondsMax,
    idleTtlSeconds: input.idle_ttl_seconds ?? 0,
    maxConcurrentExecs: input.max_concurrent_execs ?? SCHEMA_LIMITS.sandboxConcurrentExecsDefault,
    ...(input.enable_service_ingress === true ? { enableServiceIngress: true } : {}),
    ...copyHookOf(input.copy_hook),
    environment: input.env ?? {},
    ...(input.mounts === undefined ? {} : { mounts: sandboxMounts(input.mounts) }),
    ...networkOf(input),
    waitMs: waitMsOf(input.wait),
  };
}

/**
 * Creates a sandbox on the best of some hosts with capacity (docs/api.md, Sandboxes). Name and
 * capacity are reserved first; both lapse unless the host journals the sandbox and holds them. The
 * creation goes on when the caller hangs up.
 * @returns the sandbox once its host has journalled it, with `wait` once it runs, if that is soon
 * @throws AppError `bad_request`, `not_found`, `image_not_ready`, `snapshot_not_ready`,
 *   `sandbox_name_conflict`, `sandbox_limit_reached`, `not_enabled`, `no_capacity`, `unavailable`,
 *   `timeout`; nothing remains then
 */
export async function createSandbox(
  deps: Deps,
  caller: Caller,
  input: CreateSandbox & { readonly wait: boolean },
  context: RequestContext,
): Promise<SandboxRecord> {
  const { snapshot: source } = input;
  if (source !== undefined) {
    return createFromSnapshot(deps, caller, { ...input, snapshot: source }, context);
  }
  const { accountId } = caller;
  checkEnvironment(input.env ?? {});
  const { canBeOn, image, baseImageOn } = await chooseImage(deps, accountId, input);
  const draft = { ...draftOf(accountId, input), ...(image === undefined ? {} : { image }) };
  const disks = await findMountedDisks(deps, accountId, draft.mounts ?? []);
  const need = needOf(draft);
  const wishes = wishesOf(deps.hub.placements, draft, { need, disks, canBeOn });
  await linkDiskHosts(deps, disks);
  const fitting = rankSandboxHosts(deps.hub, wishes);
  refuseOfAbsent(deps, disks);
  const ranked = fitting.map((host) => ({ hostId: host.hostId, baseImage: baseImageOn(host) }));
  const share = { vcpus: draft.vcpuCount, memoryMib: draft.memSizeMib };
  const sandbox = { accountId, sandboxId: draft.sandboxId, name: input.name, share };
  return withClaimedName(deps, sandbox, async (name) => {
    // Before the sandbox is there, so that no crash leaves one without the ports that it was to
    // have.
    const ports = input.ports ?? [];
    if (ports.length > 0) await deps.directory.sandboxRoutes.prepare(draft, caller.keyId, ports);
    return place(deps, { ...draft, name }, { need, hosts: ranked, disks }, context);
  });
}

/** Asks one host after the other until one takes the sandbox, or is lost and may have taken it. */
async function place(
  deps: Deps,
  draft: Omit<JobPayload<'sandbox.create'>, 'baseImage'>,
  { need, hosts, disks }: Placement,
  context: RequestContext,
): Promise<SandboxRecord> {
  const deadlineAt = Date.now() + API_LIMITS.sandboxBeginMs;
  let refusal: AppError | undefined;
  let asked = 0;
  for (const { hostId, baseImage } of hosts) {
    if (asked === API_LIMITS.sandboxPlacementsMax || Date.now() >= deadlineAt) break;
    const { sandboxCapacity } = deps.directory;
    if (
      !(await sandboxCapacity.reserve(hostId, draft.sandboxId, need, API_LIMITS.sandboxClaimMs))
    ) {
      continue;
    }
    asked += 1;
    notePlacement(deps.hub.placements, draft, hostId);
    try {
      const on = { hostId, disks };
      return await createOn(deps, on, { ...draft, baseImage }, { ...context, deadlineAt });
    } catch (error) {
      if (error instanceof LostHost) throw error;
      if (!(error instanceof AppError) || !NOT_TAKEN.has(error.code)) throw error;
      refusal = error;
    }
  }
  throw refusal ?? noSandboxCapacity(need);
}

/** @throws AppError the host's error, or that it did not answer; no sandbox is left there then */
async function createOn(
  deps: Deps,
  { hostId, disks }: Pick<Placement, 'disks'> & { readonly hostId: string },
  payload: JobPayload<'sandbox.create'>,
  { requestId, deadlineAt }: RequestContext & { readonly deadlineAt: number },
): Promise<SandboxRecord> {
  const { accountId, sandboxId } = payload;
  const call = { kind: 'sandbox.create' as const, payload, hostId, requestId, deadlineAt };
  try {
    await moveDisksTo(deps, disks, hostId, { requestId });
    return await beginSandbox(deps, { accountId, sandboxId }, call);
  } catch (error) {
    // A reservation that the host has confirmed by now stays until the host releases it.
    await deps.directory.sandboxCapacity
      .releaseReservation(hostId, sandboxId)
      .catch(() => undefined);
    throw error;
  }
}
