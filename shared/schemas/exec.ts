import Type from 'typebox';
import { LIMITS } from '../limits.ts';
import { DiskId } from './common.ts';

/** Body of a single-disk exec (docs/api.md, Exec). */
export const RunExec = Type.Object({
  command: Type.String({
    minLength: 1,
    maxLength: LIMITS.commandBytesMax,
    description: 'Run as `bash -c <command>` with the disk as working directory. At most 1 MiB.',
  }),
});
export type RunExec = Type.Static<typeof RunExec>;

const RelativePath = Type.String({ minLength: 1, maxLength: LIMITS.mountPathBytesMax });

/** One disk of a multi-disk exec in its object form (docs/api.md, POST /api/exec). */
export const DiskMountInput = Type.Object({
  disk: DiskId,
  subdirectory: Type.Optional(RelativePath),
  readOnly: Type.Optional(Type.Boolean({ description: 'Writes fail with EROFS.' })),
  conditional: Type.Optional(
    Type.Boolean({
      description: 'Several writers may coexist: only what checkoutPaths names is checked out.',
    }),
  ),
  queueMs: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: LIMITS.execTimeoutMsMax,
      description:
        'How long to wait for the checkouts. Without checkoutPaths the mount itself is checked out, ' +
        'unless conditional is set.',
    }),
  ),
  checkoutPaths: Type.Optional(
    Type.Array(RelativePath, {
      maxItems: LIMITS.checkoutsPerMountMax,
      description:
        'Held while the command runs, each with all beneath it; no other command can check out ' +
        'any of it, or a parent. Relative to the mount.',
    }),
  ),
});
export type DiskMountInput = Type.Static<typeof DiskMountInput>;

/** Body of a multi-disk exec. */
export const RunMultiExec = Type.Object({
  // Not Type.Record: its pattern lets names with line breaks pass unchecked.
  disks: Type.Unsafe<Record<string, string | DiskMountInput>>({
    type: 'object',
    additionalProperties: Type.Union([DiskId, DiskMountInput]),
    minProperties: 1,
    maxProperties: LIMITS.disksPerExecMax,
    description: 'Disks by the path below /mnt/service at which the command sees them.',
  }),
  command: RunExec.properties.command,
});
export type RunMultiExec = Type.Static<typeof RunMultiExec>;

/** The result of an exec (docs/api.md, Exec). */
export const ExecResult = Type.Object({
  exitCode: Type.Integer(),
  stdout: Type.String(),
  stderr: Type.String(),
  timing: Type.Object({
    totalMs: Type.Integer({ minimum: 0, description: 'From arrival to answer.' }),
    queueMs: Type.Integer({ minimum: 0, description: 'Until the command started.' }),
    executeMs: Type.Integer({ minimum: 0, description: 'The command itself.' }),
  }),
});
export type ExecResult = Type.Static<typeof ExecResult>;
