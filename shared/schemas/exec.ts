import Type from 'typebox';
import { LIMITS } from '../limits.ts';

/** Body of a single-disk exec (WIRE §5.1). */
export const RunExec = Type.Object({
  command: Type.String({
    minLength: 1,
    maxLength: LIMITS.commandBytesMax,
    description: 'Run as `bash -c <command>` with the disk as working directory. At most 1 MiB.',
  }),
});
export type RunExec = Type.Static<typeof RunExec>;

/** SPEC "Exec result". */
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
