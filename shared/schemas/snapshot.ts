import Type from 'typebox';
import { DiskId, Timestamp } from './common.ts';
import { ShownNetworkPolicy } from './network-policy.ts';
import { SandboxName, Uuid } from './sandbox.ts';
import { snapshotStatuses } from './snapshot-record.ts';

export const SnapshotPath = Type.Object({ id: Uuid });

/** Body of create-snapshot (docs/snapshots.md). */
export const CreateSnapshot = Type.Object({
  name: Type.String({
    ...SandboxName,
    description: 'Unique among the snapshots of the account that have not failed.',
  }),
});
export type CreateSnapshot = Type.Static<typeof CreateSnapshot>;

/** A snapshot as the API shows it (docs/snapshots.md). */
export const Snapshot = Type.Object({
  snapshot_id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  status: Type.Enum([...snapshotStatuses]),
  sandbox_id: Type.String({ format: 'uuid', description: 'The sandbox that it was made of.' }),
  has_memory: Type.Boolean({ description: 'Whether its sandboxes continue from memory.' }),
  vcpu_count: Type.Integer(),
  mem_size_mib: Type.Integer(),
  base_image: Type.String(),
  size_bytes: Type.Integer({
    description: 'What its files take on its host, those included that its sandboxes share.',
  }),
  sandbox_count: Type.Integer({ description: 'Sandboxes that were created from it.' }),
  root_disk_id: Type.String({ ...DiskId, description: 'As the refusal of a deletion names it.' }),
  platform: Type.Enum(['amd64', 'arm64']),
  network: ShownNetworkPolicy,
  created_at: Timestamp,
  failure_reason: Type.Optional(Type.String({ description: 'In words, when it has failed.' })),
});
export type Snapshot = Type.Static<typeof Snapshot>;
