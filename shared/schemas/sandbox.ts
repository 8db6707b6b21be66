import Type from 'typebox';
import { LIMITS } from '../limits.ts';
import { sandboxStates, statusOfState } from '../sandbox-lifecycle.ts';
import { diskId, DiskId, Failure, timestamp } from './common.ts';
import { NetworkPolicy, ShownNetworkPolicy } from './network-policy.ts';
import { SandboxMountInputs, ShownSandboxMount } from './sandbox-mount.ts';
import { sandboxExecStatuses } from './sandbox-record.ts';
import { IMAGE_REFERENCE, VARIABLE_NAME, WITHOUT_NUL } from './patterns.ts';

// Both kinds of pending are one to callers.
const statuses = [...new Set(sandboxStates.map(statusOfState))];

// No pattern: text that is not a UUID answers 404, as an id does that nothing has. Ids are kept in
// lower case, but upper case spells the same UUID (RFC 9562).
const UUID = '01983f6e-7a2b-7c3d-8e4f-5a6b7c8d9e0f';
export const uuidInPath = (description: string) =>
  Type.String({ description, lowerCase: true, examples: [UUID] });
export const uuid = (description: string) =>
  Type.String({ format: 'uuid', description, examples: [UUID] });
const sid = uuidInPath('Id of the sandbox: a UUID, in upper or lower case.');
export const SandboxPath = Type.Object({ sid });
export const SandboxExecPath = Type.Object({
  sid,
  eid: uuidInPath('Id of the command: a UUID, in upper or lower case.'),
});

export const WaitQuery = Type.Object({
  wait: Type.Optional(
    Type.Boolean({
      description: `Hold the answer until what was begun has ended, at most ${LIMITS.sandboxWaitMsMax / 1000} s.`,
    }),
  ),
});

export const SandboxListQuery = Type.Object({
  filesystem: Type.Optional(diskId('Only sandboxes that mount this disk.')),
  name: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 100,
      description: 'Only the sandbox of this name.',
      examples: ['build-box'],
    }),
  ),
});

const Environment = Type.Unsafe<Record<string, string>>({
  type: 'object',
  additionalProperties: { type: 'string', documented: { pattern: WITHOUT_NUL } },
  maxProperties: LIMITS.sandboxVariablesMax,
  documented: { propertyNames: { pattern: VARIABLE_NAME } },
  description:
    'Names without = and NUL, values without NUL; at most 2048, together at most 128 KiB.',
  examples: [{ LANG: 'C.UTF-8' }],
});

export const SandboxName = Type.String({
  minLength: 1,
  maxLength: LIMITS.sandboxNameLengthMax,
  pattern: '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$',
  description: 'Unique in the account; a random one when omitted.',
  examples: ['build-box'],
});
const ttlSeconds = { minimum: LIMITS.sandboxTtlSecondsMin, maximum: LIMITS.sandboxTtlSecondsMax };
const idleTtlSeconds = { minimum: 0, maximum: LIMITS.sandboxTtlSecondsMax };

/** Body of create-sandbox (docs/api.md, Sandboxes). */
export const CreateSandbox = Type.Object(
  {
    name: Type.Optional(SandboxName),
    vcpu_count: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: LIMITS.sandboxVcpusMax,
        default: 1,
        description: 'Virtual processors.',
      }),
    ),
    mem_size_mib: Type.Optional(
      Type.Integer({
        minimum: LIMITS.sandboxMemMibMin,
        maximum: LIMITS.sandboxMemMibMax,
        default: LIMITS.sandboxMemMibDefault,
        description: 'Memory in MiB.',
      }),
    ),
    base_image: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: LIMITS.imageReferenceLengthMax,
        documented: { pattern: IMAGE_REFERENCE },
        description:
          'OCI image reference; the default image when omitted. Built on the way, if it is not there. ' +
          'Not together with image_id.',
        examples: ['debian:12'],
      }),
    ),
    image_id: Type.Optional(
      Type.String({
        pattern: '^[0-9a-f]{64}$',
        description: 'An image that was built by build-image; not together with base_image.',
        examples: ['5f3a'.repeat(16)],
      }),
    ),
    snapshot: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: LIMITS.sandboxNameLengthMax,
        description:
          'Id or name of a snapshot to create it from; not together with base_image, image_id and mounts. ' +
          'Size and image are the snapshot’s, and so is everything else that is omitted.',
        examples: ['after-setup'],
      }),
    ),
    env: Type.Optional(Environment),
    max_ttl_seconds: Type.Optional(
      Type.Integer({
        ...ttlSeconds,
        default: LIMITS.sandboxTtlSecondsMax,
        description: 'Paused when it has run for so long, counted anew each time it comes to run.',
      }),
    ),
    idle_ttl_seconds: Type.Optional(
      Type.Integer({
        ...idleTtlSeconds,
        default: 0,
        description: 'Paused when nothing was done in it for so long; 0: never.',
      }),
    ),
    max_concurrent_execs: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: LIMITS.sandboxConcurrentExecsMax,
        default: LIMITS.sandboxConcurrentExecsDefault,
        description: 'How many commands may run at once; process sessions count separately.',
      }),
    ),
    ports: Type.Optional(
      Type.Array(Type.Integer({ minimum: 1, maximum: 65_535 }), {
        maxItems: LIMITS.portsPerSandboxMax,
        description: 'Exposed to the public from the beginning, as by expose-sandbox-port.',
        examples: [[8080]],
      }),
    ),
    enable_service_ingress: Type.Optional(
      Type.Boolean({
        default: false,
        description: 'Whether every port on which a service in it listens is public.',
      }),
    ),
    network: Type.Optional(NetworkPolicy),
    mounts: Type.Optional(SandboxMountInputs),
  },
  {
    title: 'CreateSandbox',
    documented: {
      not: {
        anyOf: [
          { required: ['base_image', 'image_id'] },
          ...['base_image', 'image_id', 'mounts'].map((field) => ({
            required: ['snapshot', field],
          })),
        ],
      },
    },
  },
);
export type CreateSandbox = Type.Static<typeof CreateSandbox>;

/** Body of start-sandbox; mounts replace those that an inactive sandbox had. */
export const StartSandbox = Type.Object(
  { mounts: Type.Optional(SandboxMountInputs) },
  { title: 'StartSandbox' },
);
export type StartSandbox = Type.Static<typeof StartSandbox>;

/** Body of fork-sandbox. */
export const ForkSandbox = Type.Object(
  {
    name: Type.Optional(SandboxName),
    checkpoint: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: LIMITS.sandboxCheckpointLengthMax,
        description: 'Refused unless it is the one that the sandbox shows now.',
        examples: [UUID],
      }),
    ),
  },
  { title: 'ForkSandbox' },
);
export type ForkSandbox = Type.Static<typeof ForkSandbox>;

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

/** Body of the time limits; at least one of them. */
export const SandboxTimeout = Type.Object(
  {
    timeout: Type.Optional(
      Type.Integer({
        ...ttlSeconds,
        description: 'Seconds from now; together with what it has run already at most 24 hours.',
        examples: [3600],
      }),
    ),
    idle_ttl_seconds: Type.Optional(
      Type.Integer({
        ...idleTtlSeconds,
        description: 'Seconds without use after which it is paused; 0: never.',
        examples: [600],
      }),
    ),
  },
  {
    title: 'SandboxTimeout',
    documented: { anyOf: [{ required: ['timeout'] }, { required: ['idle_ttl_seconds'] }] },
  },
);
export type SandboxTimeout = Type.Static<typeof SandboxTimeout>;

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
        maxItems: LIMITS.dependentForksListedMax,
        description: 'The root disks of those to delete first, deepest first.',
      }),
    ),
  },
  { title: 'SandboxDeletionFailure' },
);

/** Body of a command in a sandbox (docs/api.md, execs of a sandbox). */
export const ExecInSandbox = Type.Object(
  {
    command: Type.String({
      minLength: 1,
      maxLength: LIMITS.commandBytesMax,
      documented: { pattern: WITHOUT_NUL },
      description: 'Run as `/bin/sh -c <command>`. At most 1 MiB in UTF-8.',
      examples: ['make test'],
    }),
    command_tty: Type.Optional(
      Type.Boolean({ default: false, description: 'Run it in a terminal; all output is stdout.' }),
    ),
    env: Type.Optional(Environment),
    timeout_seconds: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: LIMITS.sandboxExecTimeoutSecondsMax,
        description: 'The command is ended then; never, when omitted.',
        examples: [600],
      }),
    ),
  },
  { title: 'ExecInSandbox' },
);
export type ExecInSandbox = Type.Static<typeof ExecInSandbox>;

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

export const SandboxList = Type.Object({
  sandboxes: Type.Array(Sandbox, { description: 'Oldest first.' }),
});

/** A command in a sandbox as the API shows it (docs/api.md, execs of a sandbox). */
export const SandboxExec = Type.Object(
  {
    sandbox_id: uuid('The sandbox that it runs in.'),
    exec_id: uuid('Id of the command.'),
    command: Type.String({ description: 'As it was given.', examples: ['make test'] }),
    status: Type.Enum([...sandboxExecStatuses], {
      description: 'Whether it runs, or how it ended.',
    }),
    started_at: timestamp('When it began.'),
    finished_at: Type.Optional(timestamp('When it ended.')),
    exit_code: Type.Optional(
      Type.Integer({
        description: 'As shells show it: 128 and the signal when one ended the command.',
        examples: [0],
      }),
    ),
    exit_reason: Type.Optional(
      Type.String({ description: 'How it ended, in words.', examples: ['exit code 0'] }),
    ),
    execute_time_ms: Type.Optional(
      Type.Integer({ description: 'Milliseconds from its start to its end.', examples: [1250] }),
    ),
    stdout: Type.Optional(
      Type.String({ description: 'What it wrote; not in lists.', examples: ['ok\n'] }),
    ),
    stderr: Type.Optional(
      Type.String({ description: 'The same of its standard error.', examples: [''] }),
    ),
    command_truncated: Type.Optional(
      Type.Boolean({ description: 'Only if true: lists show the beginning of long commands.' }),
    ),
    output_truncated: Type.Optional(
      Type.Boolean({ description: 'Only if true: the beginning of the output was dropped.' }),
    ),
  },
  { title: 'SandboxExec' },
);
export type SandboxExec = Type.Static<typeof SandboxExec>;

export const SandboxExecList = Type.Object({
  execs: Type.Array(SandboxExec, { description: 'In the order of their execution.' }),
});
