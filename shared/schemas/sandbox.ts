import Type from 'typebox';
import { SCHEMA_LIMITS } from './limits.ts';
import { sandboxStates, statusOfState } from '../sandbox-lifecycle.ts';
import { diskId, DiskId, Failure, timestamp } from './common.ts';
import { ShownNetworkPolicy } from './network-policy.ts';
import { ShownSandboxMount } from './sandbox-mount.ts';
import { hookStatuses } from './sandbox-record.ts';

// Both kinds of pending are one to callers.
const statuses = [...new Set(sandboxStates.map(statusOfState))];

// No pattern: text that is not a UUID answers 404, as an id does that nothing has. Ids are kept in
// lower case, but upper case spells the same UUID (RFC 9562).
export const UUID = '01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f';
export const uuidInPath = (description: string) =>
  Type.String({ description, lowerCase: true, examples: [UUID] });
export const uuid = (description: string) =>
  Type.String({ format: 'uuid', description, examples: [UUID] });
export const sid = uuidInPath('Id of the sandbox: a UUID, in upper or lower case.');
export const SandboxPath = Type.Object({ sid });

export const WaitQuery = Type.Object({
  wait: Type.Optional(
    Type.Boolean({
      description: `Hold the answer until what was begun has ended, at most ${SCHEMA_LIMITS.sandboxWaitMsMax / 1000} s.`,
    }),
  ),
});

// No pattern: what cannot be a name is one that no sandbox has.
const nameSought = (description: string) =>
  Type.String({ minLength: 1, maxLength: 100, description, examples: ['build-box'] });

export const SandboxListQuery = Type.Object({
  filesystem: Type.Optional(diskId('Only sandboxes that mount this disk.')),
  name: Type.Optional(nameSought('Only the sandbox of this name.')),
});

/** Body of connect-sandbox-by-name. */
export const ConnectByName = Type.Object(
  { name: nameSought('Name of the sandbox.') },
  { title: 'ConnectByName' },
);

export const SandboxConnection = Type.Object(
  {
    url: Type.String({
      format: 'uri',
      description: 'WebSocket URL of the sandbox at its host, with a signed token.',
      examples: [`wss://host-1.example/sandboxes/${UUID}?token=eyJz`],
    }),
    expires_at: timestamp('Until when the URL can be used to connect.'),
  },
  { title: 'SandboxConnection' },
);
export type SandboxConnection = Type.Static<typeof SandboxConnection>;

/** A deletion that forks stand in the way of. */
export const SandboxDeletionFailure = Type.Object(
  {
    ...Failure.properties,
    child_disk_count: Type.Optional(
      Type.Integer({
        minimum: 1,
        description: 'With sandbox_has_forks: how many there are.',
        examples: [2],
      }),
    ),
    child_disk_ids: Type.Optional(
      Type.Array(DiskId, {
        maxItems: SCHEMA_LIMITS.dependentForksListedMax,
        description: 'The root disks of those to delete first, deepest first.',
      }),
    ),
  },
  { title: 'SandboxDeletionFailure' },
);

/** A sandbox as the API shows it (docs/api.md, Sandboxes). */
export const Sandbox = Type.Object(
  {
    sandbox_id: uuid('Id of the sandbox.'),
    name: Type.String({ description: 'Unique in the account.', examples: ['build-box'] }),
    status: Type.Enum(statuses, { description: 'See docs/sandboxes.md.' }),
    vcpu_count: Type.Integer({ description: 'Virtual processors.', examples: [1] }),
    mem_size_mib: Type.Integer({ description: 'Memory in MiB.', examples: [2048] }),
    max_ttl_seconds: Type.Integer({
      description: 'Paused when it has run for so long.',
      examples: [86_400],
    }),
    idle_ttl_seconds: Type.Integer({
      description: 'Paused when nothing was done in it for so long; 0: never.',
      examples: [0],
    }),
    max_concurrent_execs: Type.Integer({
      description: 'How many commands may run at once.',
      examples: [32],
    }),
    enable_service_ingress: Type.Boolean({
      description: 'Whether every port on which a service in it listens is public.',
    }),
    base_image: Type.String({
      description: 'The reference as the caller gave it, or what the image is when none was given.',
      examples: ['debian:12'],
    }),
    image: Type.Optional(
      Type.Object(
        {
          name: Type.String({ description: 'Of the distribution.', examples: ['debian'] }),
          version: Type.String({ description: 'Of its release.', examples: ['12'] }),
          key: Type.String({
            description: 'Tells one build from another.',
            examples: ['b8147a3e43b0'],
          }),
        },
        { description: 'What the image really is.' },
      ),
    ),
    root_disk_id: diskId('Its own disk, as the refusal of a deletion names it.'),
    checkpoint: Type.Optional(
      Type.String({
        description: 'Names its memory while it is pausing, paused, stopping or stopped.',
        examples: [UUID],
      }),
    ),
    mounts: Type.Array(ShownSandboxMount, { description: 'Disks that are mounted in it.' }),
    created_at: timestamp('When it was created.'),
    last_active_at: timestamp('When it was last used.'),
    platform: Type.Enum(['amd64', 'arm64'], { description: 'What its programs are built for.' }),
    image_digest: Type.Optional(
      Type.String({
        description: 'Of the image, once it is known; the default image has none.',
        examples: [`sha256:${'5f3a'.repeat(16)}`],
      }),
    ),
    snapshot_id: Type.Optional(uuid('The snapshot that it was created from.')),
    forked_from: Type.Optional(uuid('The sandbox that it was forked from.')),
    endpoints: Type.Array(
      Type.Object({
        port: Type.Integer({ description: 'TCP port inside.', examples: [8080] }),
        hostname: Type.String({
          description: 'Where it is reached from outside.',
          examples: ['8080-k3v9q2.sbx.localhost'],
        }),
      }),
      { description: 'Ports that services in it publish.' },
    ),
    network: Type.Optional(ShownNetworkPolicy),
    copy_hook: Type.Optional(
      Type.String({
        description: 'The command that runs in its copies (docs/snapshots.md).',
        examples: ['kill -HUP $(cat /run/server.pid)'],
      }),
    ),
    copy_hook_result: Type.Optional(
      Type.Object(
        {
          status: Type.Enum([...hookStatuses], {
            description: 'How it ended, or how far it has come.',
          }),
          exit_code: Type.Optional(Type.Integer({ description: 'Of its shell.', examples: [0] })),
          message: Type.Optional(
            Type.String({
              description: 'What went wrong, in words.',
              examples: ['it was killed after 10 s'],
            }),
          ),
        },
        {
          description: 'The hook that ran, or is to run, in this copy. The copy continues anyway.',
        },
      ),
    ),
    running_at: Type.Optional(timestamp('When it came to run the last time.')),
    expires_at: Type.Optional(
      timestamp('While it runs: when its time limits pause it, unless it is used until then.'),
    ),
    finished_at: Type.Optional(timestamp('When it ended, if it has.')),
    exit_reason: Type.Optional(
      Type.String({ description: 'Why it ended, for programs.', examples: ['stopped'] }),
    ),
    exit_message: Type.Optional(
      Type.String({
        description: 'The reason in words.',
        examples: ['the guest shut down as asked'],
      }),
    ),
  },
  { title: 'Sandbox' },
);
export type Sandbox = Type.Static<typeof Sandbox>;

export const NamedSandboxConnection = Type.Interface(
  [SandboxConnection],
  { sandbox: Sandbox },
  { title: 'NamedSandboxConnection' },
);
export type NamedSandboxConnection = Type.Static<typeof NamedSandboxConnection>;

export const SandboxList = Type.Object({
  sandboxes: Type.Array(Sandbox, { description: 'Oldest first.' }),
});
