import Type from 'typebox';
import { LIMITS } from '../limits.ts';
import { sandboxStates, statusOfState } from '../sandbox-lifecycle.ts';
import { DiskId, Timestamp } from './common.ts';
import { sandboxExecStatuses } from './sandbox-record.ts';

// Both kinds of pending are one to callers.
const statuses = [...new Set(sandboxStates.map(statusOfState))];

// Not patterns: an id that cannot be one answers 404, like one that is not there (WIRE §2.6).
const Uuid = Type.String({ description: 'UUID' });
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

const NOT_YET = 'Not supported yet:';

/** Body of create-sandbox (WIRE §2.7). */
export const CreateSandbox = Type.Object({
  name: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: LIMITS.sandboxNameLengthMax,
      pattern: '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$',
      description: 'Unique in the account; a random one when omitted.',
    }),
  ),
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
      default: LIMITS.sandboxBaseImageDefault,
      description: 'OCI image reference; not together with image_id.',
    }),
  ),
  image_id: Type.Optional(
    Type.String({ pattern: '^[0-9a-f]{64}$', description: `${NOT_YET} answers 400.` }),
  ),
  env: Type.Optional(Environment),
  max_ttl_seconds: Type.Optional(
    Type.Integer({
      minimum: LIMITS.sandboxTtlSecondsMin,
      maximum: LIMITS.sandboxTtlSecondsMax,
      default: LIMITS.sandboxTtlSecondsMax,
      description: `${NOT_YET} anything but the default answers 400.`,
    }),
  ),
  idle_ttl_seconds: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: LIMITS.sandboxTtlSecondsMax,
      default: 0,
      description: `${NOT_YET} anything but the default answers 400.`,
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
      description: `${NOT_YET} only an empty list.`,
    }),
  ),
  enable_service_ingress: Type.Optional(
    Type.Boolean({ default: false, description: `${NOT_YET} only false.` }),
  ),
  network: Type.Optional(Type.Unknown({ description: `${NOT_YET} answers 400.` })),
  mounts: Type.Optional(
    Type.Array(Type.Object({}), { description: `${NOT_YET} only an empty list.` }),
  ),
});
export type CreateSandbox = Type.Static<typeof CreateSandbox>;

/** Body of start-sandbox. */
export const StartSandbox = Type.Object({ mounts: CreateSandbox.properties.mounts });
export type StartSandbox = Type.Static<typeof StartSandbox>;

/** Body of a command in a sandbox (WIRE §2.7 "Exec records"). */
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

/** SPEC "Sandbox". */
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
  base_image: Type.String(),
  mounts: Type.Array(Type.Object({ disk_id: DiskId, path: Type.String() })),
  created_at: Timestamp,
  last_active_at: Timestamp,
  platform: Type.Enum(['amd64', 'arm64']),
  endpoints: Type.Array(Type.Object({ port: Type.Integer(), hostname: Type.String() })),
  running_at: Type.Optional(Timestamp),
  finished_at: Type.Optional(Timestamp),
  exit_reason: Type.Optional(Type.String()),
  exit_message: Type.Optional(Type.String({ description: 'The reason in words.' })),
});
export type Sandbox = Type.Static<typeof Sandbox>;

export const SandboxList = Type.Object({ sandboxes: Type.Array(Sandbox) });

/** SPEC "Sandbox exec record". */
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
