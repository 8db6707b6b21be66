import Type from 'typebox';
import { diskId, timestamp } from './common.ts';
import { ShownNetworkPolicy } from './network-policy.ts';
import { uuid, uuidInPath } from './sandbox.ts';
import { CopyHook, SandboxName } from './sandbox-input.ts';
import { ShownSandboxMount } from './sandbox-mount.ts';
import { snapshotStatuses } from './snapshot-record.ts';

export const SnapshotPath = Type.Object({
  id: uuidInPath('Id of the snapshot: a UUID, in upper or lower case.'),
});

/** Body of create-snapshot (docs/snapshots.md). */
export const CreateSnapshot = Type.Object(
  {
    name: Type.String({
      ...SandboxName,
      description: 'Unique among the snapshots of the account that have not failed.',
      examples: ['after-setup'],
    }),
    copy_hook: Type.Optional(CopyHook),
  },
  { title: 'CreateSnapshot' },
);
export type CreateSnapshot = Type.Static<typeof CreateSnapshot>;

/** A snapshot as the API shows it (docs/snapshots.md). */
export const Snapshot = Type.Object(
  {
    snapshot_id: uuid('Id of the snapshot.'),
    name: Type.String({ description: 'Unique in the account.', examples: ['after-setup'] }),
    status: Type.Enum([...snapshotStatuses], { description: 'Whether it can be used.' }),
    sandbox_id: uuid('The sandbox that it was made of.'),
    has_memory: Type.Boolean({ description: 'Whether its sandboxes continue from memory.' }),
    vcpu_count: Type.Integer({
      description: 'Virtual processors of its sandboxes.',
      examples: [1],
    }),
    mem_size_mib: Type.Integer({
      description: 'Memory of its sandboxes in MiB.',
      examples: [2048],
    }),
    base_image: Type.String({
      description: 'The image that the disk began with.',
      examples: ['debian:12'],
    }),
    mounts: Type.Array(ShownSandboxMount, { description: 'Disks that its sandboxes mount.' }),
    copy_hook: Type.Optional(
      Type.String({
        description: 'The command that runs in its sandboxes (docs/snapshots.md).',
        examples: ['kill -HUP $(cat /run/server.pid)'],
      }),
    ),
    size_bytes: Type.Integer({
      description: 'What its files take on its host, those included that its sandboxes share.',
      examples: [1_048_576],
    }),
    sandbox_count: Type.Integer({
      description: 'Sandboxes that were created from it.',
      examples: [3],
    }),
    root_disk_id: diskId('Its own disk, as the refusal of a deletion names it.'),
    platform: Type.Enum(['amd64', 'arm64'], { description: 'What its programs are built for.' }),
    network: ShownNetworkPolicy,
    created_at: timestamp('When it was made.'),
    failure_reason: Type.Optional(
      Type.String({
        description: 'In words, when it has failed.',
        examples: ['the storage of the host is full'],
      }),
    ),
  },
  { title: 'Snapshot' },
);
export type Snapshot = Type.Static<typeof Snapshot>;
