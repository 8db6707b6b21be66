import Type from 'typebox';
import { timestamp } from './common.ts';

const bytes = (description: string, example: number) =>
  Type.Optional(Type.Integer({ minimum: 0, description, examples: [example] }));

/** The usage of a sandbox, as its host measures it. */
export const SandboxUsage = Type.Object(
  {
    measured_at: timestamp('When it was measured.'),
    cpu_seconds: Type.Optional(
      Type.Number({
        minimum: 0,
        description:
          'Processor time that its machine has used since it was started or resumed last, all processors together.',
        examples: [12.5],
      }),
    ),
    memory_bytes: bytes(
      'Memory of the host that its machine holds, without cache that could be given back at once.',
      188_743_680,
    ),
    stored_bytes: Type.Integer({
      minimum: 0,
      description:
        'Storage that its disk and its checkpoint take, what it shares with forks included.',
      examples: [25_165_824],
    }),
    network_received_bytes: bytes(
      'Bytes that came to it over the network since it was started or resumed last.',
      10_485_760,
    ),
    network_sent_bytes: bytes('Bytes that it has sent since then.', 524_288),
  },
  { title: 'SandboxUsage' },
);
export type SandboxUsage = Type.Static<typeof SandboxUsage>;
