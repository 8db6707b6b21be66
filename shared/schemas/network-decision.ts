import Type from 'typebox';
import { timestamp } from './common.ts';

/** Connections that were judged alike; the log of a sandbox has at most one entry for each kind. */
export const NetworkDecision = Type.Object(
  {
    time: timestamp('Of the last of them.'),
    name: Type.Optional(
      Type.String({
        description: 'What the client asked for, if it named a host.',
        examples: ['api.example.com'],
      }),
    ),
    address: Type.Optional(
      Type.String({ description: 'Where it connected to.', examples: ['198.51.100.7'] }),
    ),
    protocol: Type.Enum(['tcp', 'udp'], { description: 'How it connected.' }),
    port: Type.Integer({ description: 'The port it connected to.', examples: [443] }),
    allowed: Type.Boolean({ description: 'Whether they were let through.' }),
    rule: Type.String({
      description:
        'The target of the rule that decided; or default; closed: no sandbox reaches this address; ' +
        'dns: another resolver than its own; quic; unresolved: the name has no address; ' +
        'unnamed: it shows no name, and could be for one that a rule denies or brokers.',
      examples: ['*.example.com'],
    }),
    count: Type.Integer({
      minimum: 1,
      description: 'How many packets began such connections.',
      examples: [3],
    }),
  },
  { title: 'NetworkDecision' },
);
export type NetworkDecision = Type.Static<typeof NetworkDecision>;

export const NetworkDecisionList = Type.Object({
  decisions: Type.Array(NetworkDecision, { description: 'Newest first.' }),
});
