import Type from 'typebox';
import { SCHEMA_LIMITS } from './limits.ts';
import { diskId } from './common.ts';
import { RELATIVE_PATH, WITHOUT_NUL } from './patterns.ts';
import { sizeInWords } from '../units.ts';

/** Body of a single-disk exec (docs/api.md, Exec). */
export const RunExec = Type.Object(
  {
    command: Type.String({
      minLength: 1,
      maxLength: SCHEMA_LIMITS.commandBytesMax,
      documented: { pattern: WITHOUT_NUL },
      description:
        'Run as `bash -c <command>` with the disk as working directory. At most 1 MiB in UTF-8.',
      examples: ['ls -l | wc -l'],
    }),
  },
  { title: 'RunExec' },
);
export type RunExec = Type.Static<typeof RunExec>;

const PATH = {
  minLength: 1,
  maxLength: SCHEMA_LIMITS.mountPathBytesMax,
  documented: { pattern: RELATIVE_PATH },
  examples: ['reports'],
} as const;

/** A disk of a multi-disk exec in its object form (docs/api.md, POST /api/exec). */
export const DiskMountInput = Type.Object(
  {
    disk: diskId('Id of the disk.'),
    subdirectory: Type.Optional(
      Type.String({
        ...PATH,
        description: 'Only this directory of the disk is mounted; it must exist.',
      }),
    ),
    readOnly: Type.Optional(Type.Boolean({ description: 'Writes fail with EROFS.' })),
    conditional: Type.Optional(
      Type.Boolean({
        description: 'Several writers may coexist: only what checkoutPaths names is checked out.',
      }),
    ),
    queueMs: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: SCHEMA_LIMITS.execTimeoutMsMax,
        description:
          'How long to wait for the checkouts. Without checkoutPaths the mount itself is checked out, ' +
          'unless conditional is set.',
        examples: [5000],
      }),
    ),
    checkoutPaths: Type.Optional(
      Type.Array(Type.String(PATH), {
        maxItems: SCHEMA_LIMITS.checkoutsPerMountMax,
        description:
          'Held while the command runs, each with all beneath it; no other command can check out ' +
          'any of it, or a parent. Relative to the mount; they must exist.',
        examples: [['reports/2026']],
      }),
    ),
  },
  {
    title: 'DiskMount',
    documented: {
      not: {
        properties: { readOnly: { const: true } },
        required: ['readOnly'],
        anyOf: [{ required: ['queueMs'] }, { required: ['checkoutPaths'] }],
      },
    },
  },
);
export type DiskMountInput = Type.Static<typeof DiskMountInput>;

/** Body of a multi-disk exec. */
export const RunMultiExec = Type.Object(
  {
    // Not Type.Record: its pattern lets names with line breaks pass unchecked.
    disks: Type.Unsafe<Record<string, string | DiskMountInput>>({
      type: 'object',
      additionalProperties: Type.Union([diskId('The whole disk.'), DiskMountInput]),
      minProperties: 1,
      maxProperties: SCHEMA_LIMITS.disksPerExecMax,
      documented: {
        propertyNames: { maxLength: SCHEMA_LIMITS.mountPathBytesMax, pattern: RELATIVE_PATH },
      },
      description:
        'Disks by the path below /mnt/service at which the command sees them. No path lies within another.',
      examples: [{ data: 'dsk-0a1b2c3d4e5f6071' }],
    }),
    command: RunExec.properties.command,
  },
  { title: 'RunMultiExec' },
);
export type RunMultiExec = Type.Static<typeof RunMultiExec>;

/** The result of an exec (docs/api.md, Exec). */
export const ExecResult = Type.Object(
  {
    exitCode: Type.Integer({
      description: 'As shells show it: 128 and the signal when one ended the command.',
      examples: [0],
    }),
    stdout: Type.String({
      description: `What the command wrote, at most the last ${sizeInWords(SCHEMA_LIMITS.outputBytesPerStreamMax)}.`,
      examples: ['12\n'],
    }),
    stderr: Type.String({
      description: 'The same of its standard error, with notes of what was cut.',
      examples: [''],
    }),
    timing: Type.Object(
      {
        totalMs: Type.Integer({
          minimum: 0,
          description: 'From arrival to answer.',
          examples: [61],
        }),
        queueMs: Type.Integer({
          minimum: 0,
          description: 'Until the command started.',
          examples: [22],
        }),
        executeMs: Type.Integer({ minimum: 0, description: 'The command itself.', examples: [39] }),
      },
      { description: 'Milliseconds.' },
    ),
  },
  { title: 'ExecResult' },
);
export type ExecResult = Type.Static<typeof ExecResult>;
