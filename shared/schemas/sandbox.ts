import Type from 'typebox';
import { LIMITS } from '../limits.ts';
import { sandboxStates, statusOfState } from '../sandbox-lifecycle.ts';
import { DiskId, Failure, Timestamp } from './common.ts';
import { NetworkPolicy, ShownNetworkPolicy } from './network-policy.ts';
import { SandboxMountInputs, ShownSandboxMount } from './sandbox-mount.ts';
import { sandboxExecStatuses } from './sandbox-record.ts';

// Both kinds of pending are one to callers.
const statuses = [...new Set(sandboxStates.map(statusOfState))];

// No pattern: text that is not a UUID answers 404, as an id does that nothing has. Ids are kept in
// lower case, but upper case spells the same UUID (RFC 9562).
export const Uuid = Type.String({ description: 'UUID, in upper or lower case', lowerCase: true });
export const SandboxPath = Type.Object({ sid: Uuid });
export const SandboxExecPath = Type.Object({ sid: Uuid, eid: Uuid });

export const WaitQuery = Type.Object({
  wait: Type.Optional(
    Type.Boolean({
      description: `Hold the answer until what was begun has ended, at most ${LIMITS.sandboxWaitMsMax / 1000} s.`,
    }),
  ),
});

export const SandboxListQuery = Type.Object({
  filesystem: Type.Optional(
    Type.String({ ...DiskId, description: 'Only sandboxes that mount this disk.' }),
  ),
});

const Environment = Type.Unsafe<Record<string, string>>({
  type: 'object',
  additionalProperties: { type: 'string' },
  description: 'Names without = and NUL, values without NUL; together at most 128 KiB.',
});

// OCI distribution: `[host[:port]/]path[:tag][@digest]`.
const IMAGE_REFERENCE =
  '^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?' +
  '[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*(/[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*)*' +
  '(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+:[0-9a-f]{32,128})?$';

export const SandboxName = Type.String({
  minLength: 1,
  maxLength: LIMITS.sandboxNameLengthMax,
  pattern: '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$',
  description: 'Unique in the account; a random one when omitted.',
});
const ttlSeconds = { minimum: LIMITS.sandboxTtlSecondsMin, maximum: LIMITS.sandboxTtlSecondsMax };
const idleTtlSeconds = { minimum: 0, maximum: LIMITS.sandboxTtlSecondsMax };

/** Body of create-sandbox (docs/api.md, Sandboxes). */
export const CreateSandbox = Type.Object({
  name: Type.Optional(SandboxName),
  vcpu_count: Type.Optional(
    Type.Integer({ minimum: 1, maximum: LIMITS.sandboxVcpusMax, default: 1 }),
  ),
  mem_size_mib: Type.Optional(
    Type.Integer({
      minimum: LIMITS.sandboxMemMibMin,
      maximum: LIMITS.sandboxMemMibMax,
      default: LIMITS.sandboxMemMibDefault,
    }),
  ),
  base_image: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: LIMITS.imageReferenceLengthMax,
      pattern: IMAGE_REFERENCE,
      description:
        'OCI image reference; the default image when omitted. Built on the way, if it is not there. ' +
        'Not together with image_id.',
    }),
  ),
  image_id: Type.Optional(
    Type.String({
      pattern: '^[0-9a-f]{64}$',
      description: 'An image that was built by build-image; not together with base_image.',
    }),
  ),
  snapshot: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: LIMITS.sandboxNameLengthMax,
      description:
        'Id or name of a snapshot to create it from; not together with base_image and image_id. ' +
        'Size and image are the snapshot’s, and so is everything else that is omitted.',
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
    }),
  ),
  ports: Type.Optional(
    Type.Array(Type.Integer({ minimum: 1, maximum: 65_535 }), {
      maxItems: LIMITS.portsPerSandboxMax,
      description: 'Exposed to the public from the beginning, as by expose-sandbox-port.',
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
});
export type CreateSandbox = Type.Static<typeof CreateSandbox>;

/** Body of start-sandbox; mounts replace those that an inactive sandbox had. */
export const StartSandbox = Type.Object({ mounts: Type.Optional(SandboxMountInputs) });
export type StartSandbox = Type.Static<typeof StartSandbox>;

/** Body of fork-sandbox. */
export const ForkSandbox = Type.Object({
  name: Type.Optional(SandboxName),
  checkpoint: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: LIMITS.sandboxCheckpointLengthMax,
      description: 'Refused unless it is the one that the sandbox shows now.',
    }),
  ),
});
export type ForkSandbox = Type.Static<typeof ForkSandbox>;

export const SandboxConnection = Type.Object({
  url: Type.String({
    format: 'uri',
    description: 'WebSocket URL of the sandbox at its host, with a signed token.',
  }),
  expires_at: Timestamp,
});
export type SandboxConnection = Type.Static<typeof SandboxConnection>;

/** Body of the time limits; at least one of them. */
export const SandboxTimeout = Type.Object({
  timeout: Type.Optional(
    Type.Integer({
      ...ttlSeconds,
      description: 'Seconds from now; together with what it has run already at most 24 hours.',
    }),
  ),
  idle_ttl_seconds: Type.Optional(Type.Integer({ ...idleTtlSeconds, description: '0: never.' })),
});
export type SandboxTimeout = Type.Static<typeof SandboxTimeout>;

/** A deletion that forks stand in the way of. */
export const SandboxDeletionFailure = Type.Object({
  ...Failure.properties,
  child_disk_count: Type.Optional(
    Type.Integer({ minimum: 1, description: 'With sandbox_has_forks: how many there are.' }),
  ),
  child_disk_ids: Type.Optional(
    Type.Array(DiskId, {
      maxItems: LIMITS.dependentForksListedMax,
      description: 'The root disks of those to delete first, deepest first.',
    }),
  ),
});

/** Body of a command in a sandbox (docs/api.md, execs of a sandbox). */
export const ExecInSandbox = Type.Object({
  command: Type.String({
    minLength: 1,
    maxLength: LIMITS.commandBytesMax,
    description: 'Run as `/bin/sh -c <command>`. At most 1 MiB.',
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
    }),
  ),
});
export type ExecInSandbox = Type.Static<typeof ExecInSandbox>;

/** A sandbox as the API shows it (docs/api.md, Sandboxes). */
export const Sandbox = Type.Object({
  sandbox_id: Type.String({ format: 'uuid' }),
  name: Type.String(),
  status: Type.Enum(statuses),
  vcpu_count: Type.Integer(),
  mem_size_mib: Type.Integer(),
  max_ttl_seconds: Type.Integer(),
  idle_ttl_seconds: Type.Integer(),
  max_concurrent_execs: Type.Integer(),
  enable_service_ingress: Type.Boolean(),
  base_image: Type.String({
    description: 'The reference as the caller gave it, or what the image is when none was given.',
  }),
  image: Type.Optional(
    Type.Object(
      { name: Type.String(), version: Type.String(), key: Type.String() },
      { description: 'What the image really is; the key tells one build from another.' },
    ),
  ),
  snapshot_id: Type.Optional(
    Type.String({ format: 'uuid', description: 'The snapshot that it was created from.' }),
  ),
  root_disk_id: Type.String({ ...DiskId, description: 'As the refusal of a deletion names it.' }),
  checkpoint: Type.Optional(
    Type.String({ description: 'While it is pausing, paused, stopping or stopped.' }),
  ),
  mounts: Type.Array(ShownSandboxMount),
  created_at: Timestamp,
  last_active_at: Timestamp,
  platform: Type.Enum(['amd64', 'arm64']),
  image_digest: Type.Optional(
    Type.String({ description: 'Of the image, once it is known; the default image has none.' }),
  ),
  endpoints: Type.Array(Type.Object({ port: Type.Integer(), hostname: Type.String() })),
  network: Type.Optional(ShownNetworkPolicy),
  running_at: Type.Optional(Timestamp),
  expires_at: Type.Optional(
    Type.Unsafe<string>({
      ...Timestamp,
      description: 'While it runs: when its time limits pause it, unless it is used until then.',
    }),
  ),
  finished_at: Type.Optional(Timestamp),
  exit_reason: Type.Optional(Type.String()),
  exit_message: Type.Optional(Type.String({ description: 'The reason in words.' })),
});
export type Sandbox = Type.Static<typeof Sandbox>;

export const SandboxList = Type.Object({ sandboxes: Type.Array(Sandbox) });

/** A command in a sandbox as the API shows it (docs/api.md, execs of a sandbox). */
export const SandboxExec = Type.Object({
  sandbox_id: Type.String({ format: 'uuid' }),
  exec_id: Type.String({ format: 'uuid' }),
  command: Type.String(),
  status: Type.Enum([...sandboxExecStatuses]),
  started_at: Timestamp,
  finished_at: Type.Optional(Timestamp),
  exit_code: Type.Optional(Type.Integer()),
  exit_reason: Type.Optional(Type.String()),
  execute_time_ms: Type.Optional(Type.Integer()),
  stdout: Type.Optional(Type.String()),
  stderr: Type.Optional(Type.String()),
  command_truncated: Type.Optional(
    Type.Boolean({ description: 'Only if true: lists show the beginning of long commands.' }),
  ),
  output_truncated: Type.Optional(
    Type.Boolean({ description: 'Only if true: the beginning of the output was dropped.' }),
  ),
});
export type SandboxExec = Type.Static<typeof SandboxExec>;

export const SandboxExecList = Type.Object({ execs: Type.Array(SandboxExec) });
