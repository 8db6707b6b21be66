import Type from 'typebox';
import { SCHEMA_LIMITS } from './limits.ts';
import { timestamp } from './common.ts';
import { WITHOUT_NUL } from './patterns.ts';
import { sid, uuid, uuidInPath } from './sandbox.ts';
import { Environment } from './sandbox-input.ts';
import { sandboxExecStatuses } from './sandbox-record.ts';

export const SandboxExecPath = Type.Object({
  sid,
  eid: uuidInPath('Id of the command: a UUID, in upper or lower case.'),
});

/** Body of a command in a sandbox (docs/api.md, execs of a sandbox). */
export const ExecInSandbox = Type.Object(
  {
    command: Type.String({
      minLength: 1,
      maxLength: SCHEMA_LIMITS.commandBytesMax,
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
        maximum: SCHEMA_LIMITS.sandboxExecTimeoutSecondsMax,
        description: 'The command is ended then; never, when omitted.',
        examples: [600],
      }),
    ),
  },
  { title: 'ExecInSandbox' },
);
export type ExecInSandbox = Type.Static<typeof ExecInSandbox>;

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
