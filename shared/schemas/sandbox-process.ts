import Type from 'typebox';
import { timestamp } from './common.ts';
import { uuid } from './sandbox.ts';
import { MINUTE_MS } from '../units.ts';
import { SCHEMA_LIMITS } from './limits.ts';

const STATUSES = ['running', 'completed', 'failed', 'cancelled', 'timed_out'] as const;

/** A process of a session as the API shows it (docs/api.md, processes of a sandbox). */
export const SandboxProcess = Type.Object(
  {
    process_id: uuid('Id of the process; sessions attach to it by this id.'),
    status: Type.Enum([...STATUSES], { description: 'Whether it runs, or how it ended.' }),
    pid: Type.Integer({
      minimum: 0,
      description: 'Its number in the sandbox, also after its end.',
      examples: [412],
    }),
    command: Type.Optional(
      Type.String({
        description:
          'As it was given. Absent when the agent of the host, or the sandbox, was started anew since.',
        examples: ['bash -l'],
      }),
    ),
    command_truncated: Type.Optional(
      Type.Boolean({ description: 'Only if true: the command is longer and was cut.' }),
    ),
    terminal: Type.Optional(
      Type.Object(
        {
          cols: Type.Integer({ minimum: 0, description: 'Columns.', examples: [80] }),
          rows: Type.Integer({ minimum: 0, description: 'Rows.', examples: [24] }),
        },
        { description: 'Size of its terminal; absent when it has none.' },
      ),
    ),
    attached_clients: Type.Integer({
      minimum: 0,
      description: 'How many sessions are attached to it.',
      examples: [1],
    }),
    output_bytes: Type.Integer({
      minimum: 0,
      description: 'How much it has written, also what is not kept any more.',
      examples: [2048],
    }),
    ended_at: Type.Optional(timestamp('When it ended.')),
    exit_code: Type.Optional(
      Type.Integer({
        description: 'As shells show it: 128 and the signal when one ended it.',
        examples: [0],
      }),
    ),
    exit_reason: Type.Optional(
      Type.String({ description: 'How it ended, in words.', examples: ['exit code 1'] }),
    ),
  },
  { title: 'SandboxProcess' },
);
export type SandboxProcess = Type.Static<typeof SandboxProcess>;

export const SandboxProcessList = Type.Object({
  processes: Type.Array(SandboxProcess, {
    description:
      'Those that run, and those that ended within the last ' +
      `${SCHEMA_LIMITS.processKeptMs / MINUTE_MS} minutes, in no order.`,
  }),
});
