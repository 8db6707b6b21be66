import type { SandboxRecord } from '../../../shared/schemas/sandbox-record.ts';
import type { SandboxRow } from '../../system/journal/sandbox-journal.ts';
import { toWallTime } from '../../system/monotonic-clock.ts';
import type { SlotPool } from '../../network/slots/slot-pool.ts';
import type { MachineSpec } from '../../machines/driver.ts';
import type { SandboxMounts } from '../../machines/attachments.ts';
import type { SandboxPolicies } from '../holds/sandbox-policies.ts';
import { dueAt } from './time-limits.ts';

/**
 * When a time limit will pause the sandbox, as an RFC 3339 time on the wall clock as it is set now;
 * undefined unless it is running.
 */
function expiryOf({ state, expiresAt, idleSince, config }: SandboxRow): string | undefined {
  if (state !== 'running') return undefined;
  const at = dueAt({ expiresAt, idleSince, idleTtlSeconds: config.idleTtlSeconds });
  return Number.isFinite(at) ? new Date(toWallTime(at)).toISOString() : undefined;
}

/** The state as nodes of every version know it: they treat `draining` like `pausing`. */
const publishedState = (state: SandboxRow['state']): SandboxRow['state'] =>
  state === 'draining' ? 'pausing' : state;

/** Converts a journal row into the record that the host publishes. */
export function toRecord(
  row: SandboxRow,
  host: Pick<SandboxRecord, 'hostId' | 'platform'>,
): SandboxRecord {
  const { id, accountId, config, state, rootDiskId, createdAt, lastActiveAt, revision } = row;
  const {
    snapshotId,
    parentId,
    checkpoint,
    network,
    runningAt,
    finishedAt,
    exitReason,
    exitMessage,
    hook,
  } = row;
  const { hostId, platform } = host;
  const { image } = row;
  const expiresAt = expiryOf(row);
  return {
    ...{ id, accountId, hostId, config, rootDiskId, createdAt, lastActiveAt },
    state: publishedState(state),
    platform: image?.platform ?? platform,
    ...(image?.digest === undefined ? {} : { imageDigest: image.digest }),
    ...(snapshotId === undefined ? {} : { snapshotId }),
    ...(parentId === undefined ? {} : { forkedFrom: parentId }),
    ...(checkpoint === undefined ? {} : { checkpoint }),
    network,
    ...(runningAt === undefined ? {} : { runningAt }),
    ...(expiresAt === undefined ? {} : { expiresAt }),
    ...(finishedAt === undefined ? {} : { finishedAt }),
    ...(exitReason === undefined ? {} : { exitReason }),
    ...(exitMessage === undefined ? {} : { exitMessage }),
    ...(hook === undefined ? {} : { hook }),
    revision,
  };
}

/**
 * How processes start that name nothing else: as the image says, but for the sandbox's variables.
 */
const defaultsOf = ({
  image,
  environment,
}: SandboxRow): Pick<MachineSpec['settings'], 'environment' | 'directory' | 'user'> => ({
  environment: { ...image?.config?.env, ...environment },
  directory: image?.config?.workingDir ?? '/',
  user: image?.config?.user ?? '',
});

interface Surroundings {
  readonly slots: SlotPool;
  readonly policies: SandboxPolicies;
  readonly mounts: SandboxMounts;
}

/**
 * The driver's input to start or recover the sandbox's machine. By then the sandbox's network
 * policy counts in its slot.
 */
export async function machineSpec(
  row: SandboxRow,
  { slots, policies, mounts }: Surroundings,
): Promise<MachineSpec> {
  const { id, vmId, uid, slot, config, bootId } = row;
  if (slot === undefined) throw new Error('the sandbox has no network slot');
  const plan = await slots.take(slot);
  await policies.apply(plan, row);
  return {
    vmId,
    uid,
    vcpuCount: config.vcpuCount,
    memSizeMib: config.memSizeMib,
    slot: plan,
    mounts: mounts.locate(config.mounts ?? []),
    settings: { hostname: config.name, machineId: id, bootId, ...defaultsOf(row) },
  };
}
