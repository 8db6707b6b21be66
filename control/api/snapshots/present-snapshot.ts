import type { Snapshot } from '../../../shared/schemas/snapshot.ts';
import type { SnapshotRecord } from '../../../shared/schemas/snapshot-record.ts';
import { presentMount } from '../sandboxes/present-sandbox.ts';

/** A snapshot as the API shows it (docs/snapshots.md). */
export function presentSnapshot({
  record,
  sandboxCount,
}: {
  readonly record: SnapshotRecord;
  readonly sandboxCount: number;
}): Snapshot {
  const { config, failureReason } = record;
  return {
    snapshot_id: record.id,
    name: record.name,
    status: record.status,
    sandbox_id: record.sandboxId,
    has_memory: record.hasMemory,
    vcpu_count: config.vcpuCount,
    mem_size_mib: config.memSizeMib,
    base_image: config.baseImage,
    mounts: (config.mounts ?? []).map(presentMount),
    ...(config.copyHook ? { copy_hook: config.copyHook } : {}),
    size_bytes: record.sizeBytes,
    sandbox_count: sandboxCount,
    root_disk_id: record.rootDiskId,
    platform: record.platform,
    network: record.network,
    created_at: new Date(record.createdAt).toISOString(),
    ...(failureReason === undefined ? {} : { failure_reason: failureReason }),
  };
}
