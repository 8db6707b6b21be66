import Type from 'typebox';
import { Timestamp } from './common.ts';

/** Connections that were judged alike; the log of a sandbox has at most one entry for each kind. */
export const NetworkDecision = Type.Object({
  time: Type.Unsafe<string>({ ...Timestamp, description: 'Of the last of them.' }),
  name: Type.Optional(
    Type.String({ description: 'What the client asked for, if it named a host.' }),
  ),
  address: Type.Optional(Type.String({ description: 'Where it connected to.' })),
  protocol: Type.Enum(['tcp', 'udp']),
  port: Type.Integer(),
  allowed: Type.Boolean(),
  rule: Type.String({
    description:
      'The target of the rule that decided; or default; closed: no sandbox reaches this address; ' +
      'dns: another resolver than its own; quic; unresolved: the name has no address.',
  }),
  count: Type.Integer({ minimum: 1, description: 'How many packets began such connections.' }),
});
export type NetworkDecision = Type.Static<typeof NetworkDecision>;

export const NetworkDecisionList = Type.Object({ decisions: Type.Array(NetworkDecision) });
