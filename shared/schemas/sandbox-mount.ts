import Type from 'typebox';
import { diskIdPattern } from '../ids.ts';
import { SCHEMA_LIMITS } from './limits.ts';
import { DiskId } from './common.ts';
import { mountPath, OPTIONAL_RELATIVE_PATH } from './patterns.ts';

/** Programs of the image, and what guest agent and kernel need at these paths. */
export const SYSTEM_DIRECTORIES = [
  ...['/bin', '/boot', '/etc', '/lib', '/lib32', '/lib64', '/libx32', '/sbin'],
  ...['/usr', '/usr/bin', '/usr/lib', '/usr/lib32', '/usr/lib64', '/usr/libexec', '/usr/sbin'],
  ...['/usr/share', '/var', '/var/lib'],
] as const;
/** File systems of the kernel or in memory: nothing can be mounted in them either. */
export const CLOSED_TREES = ['/.berth', '/dev', '/proc', '/run', '/sys', '/var/run'] as const;

/** Refused rather than ignored: a caller relies on having the disk, or the paths, to itself. */
const CHECKOUT = { description: 'Refused: sandboxes check nothing out.' } as const;

/** A disk in the `mounts` of create-sandbox and start-sandbox (docs/mounts.md). */
export const SandboxMountInput = Type.Object(
  {
    disk_id: DiskId,
    path: Type.Optional(
      Type.String({
        minLength: 1,
        documented: {
          maxLength: SCHEMA_LIMITS.mountPathBytesMax,
          pattern: mountPath(CLOSED_TREES, SYSTEM_DIRECTORIES),
        },
        description:
          'Absolute path in the sandbox, outside the directories of the system. May be omitted for a sole mount: /mnt/service then.',
        examples: ['/mnt/data'],
      }),
    ),
    subdirectory: Type.Optional(
      Type.String({
        documented: { maxLength: SCHEMA_LIMITS.mountPathBytesMax, pattern: OPTIONAL_RELATIVE_PATH },
        description: 'Directory of the disk to mount instead of all of it; it must exist.',
        examples: ['reports'],
      }),
    ),
    read_only: Type.Optional(
      Type.Boolean({ default: false, description: 'Whether writes to it fail, with EROFS.' }),
    ),
    conditional: Type.Optional(
      Type.Boolean({ description: 'Without effect: other writers may always use the disk, too.' }),
    ),
    queue_ms: Type.Optional(Type.Integer({ ...CHECKOUT, examples: [5000] })),
    checkout_paths: Type.Optional(Type.Array(Type.String(), { ...CHECKOUT, examples: [['a']] })),
  },
  {
    title: 'SandboxMountInput',
    documented: {
      not: { anyOf: [{ required: ['queue_ms'] }, { required: ['checkout_paths'] }] },
    },
  },
);
export type SandboxMountInput = Type.Static<typeof SandboxMountInput>;

export const SandboxMountInputs = Type.Array(SandboxMountInput, {
  maxItems: SCHEMA_LIMITS.mountsPerSandboxMax,
  documented: { anyOf: [{ maxItems: 1 }, { items: { required: ['path'] } }] },
  description:
    'Disks of the account that the sandbox sees as directories. Each disk once, no path within another.',
});

/** A mount as the API shows it. */
export const ShownSandboxMount = Type.Object(
  {
    disk_id: DiskId,
    path: Type.String({ description: 'Where it is mounted.', examples: ['/mnt/data'] }),
    subdirectory: Type.Optional(
      Type.String({ description: 'The directory that is mounted.', examples: ['reports'] }),
    ),
    read_only: Type.Optional(Type.Boolean({ description: 'Only if true.' })),
  },
  { title: 'SandboxMount' },
);

/** A mount as jobs, journal and directory have it. */
export const SandboxMount = Type.Object({
  diskId: Type.String({ pattern: diskIdPattern }),
  /** Absolute, normalised. */
  path: Type.String({ minLength: 2, maxLength: SCHEMA_LIMITS.mountPathBytesMax }),
  /** Relative to the disk's contents; empty: all of it. */
  subdirectory: Type.String({ maxLength: SCHEMA_LIMITS.mountPathBytesMax }),
  readOnly: Type.Boolean(),
});
export type SandboxMount = Type.Static<typeof SandboxMount>;

export const SandboxMounts = Type.Array(SandboxMount, {
  maxItems: SCHEMA_LIMITS.mountsPerSandboxMax,
});
