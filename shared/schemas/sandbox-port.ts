import Type from 'typebox';
import { SCHEMA_LIMITS } from './limits.ts';
import { HOUR_MS } from '../units.ts';
import { timestamp, ttl } from './common.ts';
import { SandboxPath } from './sandbox.ts';

const SHA256 = '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08';

const Port = Type.Integer({
  minimum: 1,
  maximum: 65_535,
  description: 'TCP port inside the sandbox.',
  examples: [8080],
});

export const SandboxPortPath = Type.Interface([SandboxPath], { port: Port });

/** Ids of any form are accepted: what cannot be an id is not found, like the id of no token. */
export const PortTokenPath = Type.Interface([SandboxPath], {
  tokenId: Type.String({ description: 'Id of the token.', examples: [SHA256] }),
});

const hostname = Type.String({
  description: '`<port>-<route-id>.<zone>`; the same for as long as the sandbox lives.',
  examples: ['8080-k3v9q2.sbx.localhost'],
});

/** A port that is reached without a token (docs/api.md, Ports). */
export const SandboxPort = Type.Object({ port: Port, hostname }, { title: 'SandboxPort' });
export type SandboxPort = Type.Static<typeof SandboxPort>;

export const SandboxPortList = Type.Object({
  ports: Type.Array(SandboxPort, { description: 'In ascending order.' }),
});

/** Body of create-port-token. */
export const CreatePortToken = Type.Object(
  {
    port: Port,
    ttl: Type.Optional(
      ttl(
        `A duration such as \`90s\`, \`4m\` or \`1h30m\`, more than 0 and at most ` +
          `${SCHEMA_LIMITS.credentialTtlMsMax / HOUR_MS}h; without it the token never expires.`,
        '1h30m',
      ),
    ),
  },
  { title: 'CreatePortToken' },
);
export type CreatePortToken = Type.Static<typeof CreatePortToken>;

/** A port token as lists show it: never the token itself. */
export const PortToken = Type.Object(
  {
    id: Type.String({ description: 'SHA-256 of the token, in hex.', examples: [SHA256] }),
    port: Port,
    created_at: timestamp('When the token was created.'),
    expires_at: Type.Optional(timestamp('When it expires; absent when it never does.')),
    hostname,
  },
  { title: 'PortToken' },
);
export type PortToken = Type.Static<typeof PortToken>;

export const CreatedPortToken = Type.Interface(
  [PortToken],
  {
    token: Type.String({
      description: 'Sent as X-Service-Token; only in this answer.',
      examples: ['spt-0a1b2c3d4e5f60718293a4b5c6d7e8f9'],
    }),
  },
  { title: 'CreatedPortToken' },
);

export const PortTokenList = Type.Object({
  tokens: Type.Array(PortToken, { description: 'Oldest first.' }),
});
