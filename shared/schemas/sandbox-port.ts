import Type from 'typebox';
import { LIMITS } from '../limits.ts';
import { HOUR_MS } from '../units.ts';
import { Timestamp } from './common.ts';
import { SandboxPath } from './sandbox.ts';

const Port = Type.Integer({ minimum: 1, maximum: 65_535 });

export const SandboxPortPath = Type.Interface([SandboxPath], { port: Port });

/** Of any form: what cannot be an id is not found, like the id of no token. */
export const PortTokenPath = Type.Interface([SandboxPath], { tokenId: Type.String() });

const hostname = Type.String({
  description: '`<port>-<route-id>.<zone>`; the same for as long as the sandbox lives.',
});

/** A port that is reached without a token (docs/api.md, Ports). */
export const SandboxPort = Type.Object({ port: Port, hostname });
export type SandboxPort = Type.Static<typeof SandboxPort>;

export const SandboxPortList = Type.Object({ ports: Type.Array(SandboxPort) });

/** Body of create-port-token. */
export const CreatePortToken = Type.Object({
  port: Port,
  ttl: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 64,
      description:
        `A duration such as \`90s\`, \`4m\` or \`1h30m\`, at most ` +
        `${LIMITS.portTokenTtlMsMax / HOUR_MS}h; without it the token never expires.`,
    }),
  ),
});
export type CreatePortToken = Type.Static<typeof CreatePortToken>;

/** A port token as lists show it: never the token itself. */
export const PortToken = Type.Object({
  id: Type.String({ description: 'SHA-256 of the token, in hex.' }),
  port: Port,
  created_at: Timestamp,
  expires_at: Type.Optional(Timestamp),
  hostname,
});
export type PortToken = Type.Static<typeof PortToken>;

export const CreatedPortToken = Type.Interface([PortToken], {
  token: Type.String({ description: 'Sent as X-Service-Token; only in this answer.' }),
});

export const PortTokenList = Type.Object({ tokens: Type.Array(PortToken) });
