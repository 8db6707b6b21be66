import { type SandboxState, statusOfState } from '../../../shared/sandbox-lifecycle.ts';
import type { Sandbox } from '../../../shared/schemas/sandbox.ts';
import type { SandboxExec } from '../../../shared/schemas/sandbox-exec.ts';
import type {
  HookResult,
  SandboxExecRecord,
  SandboxRecord,
} from '../../../shared/schemas/sandbox-record.ts';
import type { SandboxMount } from '../../../shared/schemas/sandbox-mount.ts';
import type { SandboxImage } from '../../../shared/schemas/sandbox-image.ts';

/** With exactly three fraction digits (docs/api.md, Envelope). */
const timestamp = (text: string): string => new Date(text).toISOString();

/** States in which a resume, start or fork would use the checkpoint, now or soon. */
const withCheckpoint: ReadonlySet<SandboxState> = new Set([
  'draining',
  'pausing',
  'paused',
  'stopping',
  'stopped',
]);

/** Without the codename, which is only another name to ask for the image by. */
const presentImage = ({ name, version, key }: SandboxImage): NonNullable<Sandbox['image']> => ({
  name,
  version,
  key,
});

export const presentMount = ({
  diskId,
  path,
  subdirectory,
  readOnly,
}: SandboxMount): Sandbox['mounts'][number] => ({
  disk_id: diskId,
  path,
  ...(subdirectory === '' ? {} : { subdirectory }),
  ...(readOnly ? { read_only: true } : {}),
});

const presentHook = ({
  status,
  exitCode,
  message,
}: HookResult): NonNullable<Sandbox['copy_hook_result']> => ({
  status,
  ...(exitCode === undefined ? {} : { exit_code: exitCode }),
  ...(message === undefined ? {} : { message }),
});

/**
 * A sandbox as the API shows it (docs/api.md, Sandboxes).
 * @param endpoints the ports that its services publish
 */
export function presentSandbox(record: SandboxRecord, endpoints: Sandbox['endpoints']): Sandbox {
  const { config, state, checkpoint, network, exitReason, exitMessage, hook } = record;
  const { snapshotId, forkedFrom, runningAt, expiresAt, finishedAt, imageDigest } = record;
  return {
    sandbox_id: record.id,
    name: config.name,
    status: statusOfState(state),
    vcpu_count: config.vcpuCount,
    mem_size_mib: config.memSizeMib,
    max_ttl_seconds: config.maxTtlSeconds,
    idle_ttl_seconds: config.idleTtlSeconds,
    max_concurrent_execs: config.maxConcurrentExecs,
    enable_service_ingress: config.enableServiceIngress === true,
    base_image: config.baseImage,
    ...(config.image === undefined ? {} : { image: presentImage(config.image) }),
    ...(snapshotId === undefined ? {} : { snapshot_id: snapshotId }),
    ...(forkedFrom === undefined ? {} : { forked_from: forkedFrom }),
    root_disk_id: record.rootDiskId,
    ...(checkpoint !== undefined && withCheckpoint.has(state) ? { checkpoint } : {}),
    mounts: (config.mounts ?? []).map(presentMount),
    created_at: timestamp(record.createdAt),
    last_active_at: timestamp(record.lastActiveAt),
    platform: record.platform,
    ...(imageDigest === undefined ? {} : { image_digest: imageDigest }),
    endpoints,
    ...(network === undefined ? {} : { network }),
    ...(config.copyHook ? { copy_hook: config.copyHook } : {}),
    ...(hook === undefined ? {} : { copy_hook_result: presentHook(hook) }),
    ...(runningAt === undefined ? {} : { running_at: timestamp(runningAt) }),
    ...(expiresAt === undefined ? {} : { expires_at: timestamp(expiresAt) }),
    ...(finishedAt === undefined ? {} : { finished_at: timestamp(finishedAt) }),
    ...(exitReason === undefined ? {} : { exit_reason: exitReason }),
    ...(exitMessage === undefined ? {} : { exit_message: exitMessage }),
  };
}

/** @param output stdout and stderr, where they are shown; bytes that are not UTF-8 become U+FFFD */
export function presentSandboxExec(
  record: SandboxExecRecord,
  output: readonly Buffer[] = [],
): SandboxExec {
  const { finishedAt, exitCode, exitReason, executeTimeMs } = record;
  const [stdout, stderr] = output;
  return {
    sandbox_id: record.sandboxId,
    exec_id: record.id,
    command: record.command,
    status: record.status,
    started_at: timestamp(record.startedAt),
    ...(finishedAt === undefined ? {} : { finished_at: timestamp(finishedAt) }),
    ...(exitCode === undefined ? {} : { exit_code: exitCode }),
    ...(exitReason === undefined ? {} : { exit_reason: exitReason }),
    ...(executeTimeMs === undefined ? {} : { execute_time_ms: Math.round(executeTimeMs) }),
    ...(stdout === undefined ? {} : { stdout: stdout.toString('utf8') }),
    ...(stderr === undefined ? {} : { stderr: stderr.toString('utf8') }),
    ...(record.isCommandCut === true ? { command_truncated: true } : {}),
    ...(record.droppedBytes > 0 ? { output_truncated: true } : {}),
  };
}
