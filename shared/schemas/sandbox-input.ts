import Type from 'typebox';
import { SCHEMA_LIMITS } from './limits.ts';
import { NetworkPolicy } from './network-policy.ts';
import { IMAGE_REFERENCE, VARIABLE_NAME, WITHOUT_NUL } from './patterns.ts';
import { UUID } from './sandbox.ts';
import { SandboxMountInputs } from './sandbox-mount.ts';
import { sizeInWords } from '../units.ts';

export const Environment = Type.Unsafe<Record<string, string>>({
  type: 'object',
  additionalProperties: { type: 'string', documented: { pattern: WITHOUT_NUL } },
  maxProperties: SCHEMA_LIMITS.sandboxVariablesMax,
  documented: { propertyNames: { pattern: VARIABLE_NAME } },
  description:
    'Names without = and NUL, values without NUL; at most ' +
    `${SCHEMA_LIMITS.sandboxVariablesMax}, together at most ` +
    `${sizeInWords(SCHEMA_LIMITS.sandboxEnvironmentBytesMax)}.`,
  examples: [{ LANG: 'C.UTF-8' }],
});

export const SandboxName = Type.String({
  minLength: 1,
  maxLength: SCHEMA_LIMITS.sandboxNameLengthMax,
  pattern: '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$',
  description: 'Unique in the account; a random one when omitted.',
  examples: ['build-box'],
});
export const CopyHook = Type.String({
  maxLength: SCHEMA_LIMITS.copyHookBytesMax,
  documented: { pattern: WITHOUT_NUL },
  description:
    'Shell command that runs in each copy that continues from memory (a fork, a sandbox from a ' +
    'snapshot), while all its other processes are frozen; killed after ' +
    `${SCHEMA_LIMITS.copyHookMsMax / 1000} s. At most ${sizeInWords(SCHEMA_LIMITS.copyHookBytesMax)}; empty: none.`,
  examples: ['kill -HUP $(cat /run/server.pid)'],
});
const ttlSeconds = {
  minimum: SCHEMA_LIMITS.sandboxTtlSecondsMin,
  maximum: SCHEMA_LIMITS.sandboxTtlSecondsMax,
};
const idleTtlSeconds = { minimum: 0, maximum: SCHEMA_LIMITS.sandboxTtlSecondsMax };

/** Body of create-sandbox (docs/api.md, Sandboxes). */
export const CreateSandbox = Type.Object(
  {
    name: Type.Optional(SandboxName),
    vcpu_count: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: SCHEMA_LIMITS.sandboxVcpusMax,
        default: 1,
        description: 'Virtual processors.',
      }),
    ),
    mem_size_mib: Type.Optional(
      Type.Integer({
        minimum: SCHEMA_LIMITS.sandboxMemMibMin,
        maximum: SCHEMA_LIMITS.sandboxMemMibMax,
        default: SCHEMA_LIMITS.sandboxMemMibDefault,
        description: 'Memory in MiB.',
      }),
    ),
    base_image: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: SCHEMA_LIMITS.imageReferenceLengthMax,
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
        maxLength: SCHEMA_LIMITS.sandboxNameLengthMax,
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
        default: SCHEMA_LIMITS.sandboxTtlSecondsMax,
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
        maximum: SCHEMA_LIMITS.sandboxConcurrentExecsMax,
        default: SCHEMA_LIMITS.sandboxConcurrentExecsDefault,
        description: 'How many commands may run at once; process connections count separately.',
      }),
    ),
    ports: Type.Optional(
      Type.Array(Type.Integer({ minimum: 1, maximum: 65_535 }), {
        maxItems: SCHEMA_LIMITS.portsPerSandboxMax,
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
    copy_hook: Type.Optional(CopyHook),
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

/**
 * Body of start-sandbox; mounts replace those that an inactive sandbox had, a hook that of any.
 */
export const StartSandbox = Type.Object(
  { mounts: Type.Optional(SandboxMountInputs), copy_hook: Type.Optional(CopyHook) },
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
        maxLength: SCHEMA_LIMITS.sandboxCheckpointLengthMax,
        description: 'Refused unless it is the one that the sandbox shows now.',
        examples: [UUID],
      }),
    ),
    copy_hook: Type.Optional(CopyHook),
  },
  { title: 'ForkSandbox' },
);
export type ForkSandbox = Type.Static<typeof ForkSandbox>;

/** Body of the time limits; at least one of them. */
export const SandboxTimeout = Type.Object(
  {
    timeout: Type.Optional(
      Type.Integer({
        ...ttlSeconds,
        description:
          'Seconds from now; together with what it has run already at most ' +
          `${SCHEMA_LIMITS.sandboxTtlSecondsMax / 3600} hours.`,
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
    documented: {
      allOf: [{ anyOf: [{ required: ['timeout'] }, { required: ['idle_ttl_seconds'] }] }],
    },
  },
);
export type SandboxTimeout = Type.Static<typeof SandboxTimeout>;
