import Type from 'typebox';
import { LIMITS } from '../limits.ts';
import { type Ring, signToken, verifyToken } from '../secrets.ts';
import { compile } from '../validate.ts';
import { connectionKeyPattern } from './connection-token.ts';

/*
 * How a control node tells an agent its public connection keys, when it registers the agent's link.
 * The agent found the node in Redis, and whoever can write to Redis could lead it to a node of
 * their own. Hence the keys are signed with CLUSTER_SECRET: nobody else can make an agent accept a
 * key.
 */

const PURPOSE = 'connection-keys';

/** Which link the keys were sent over. */
export interface KeyLink {
  readonly nodeId: string;
  readonly hostId: string;
  readonly region: string;
}

const checkKeys = compile(
  Type.Array(Type.String({ pattern: connectionKeyPattern }), {
    minItems: 1,
    maxItems: LIMITS.secretsOfRingMax,
  }),
);

/**
 * Signs a control node's public keys for one agent. The agent must read the text within seconds.
 */
export function signConnectionKeys(
  clusterSecrets: Ring<string>,
  { nodeId, hostId, region }: KeyLink,
  publicKeys: readonly string[],
): string {
  const claims = { nodeId, hostId, region, keys: publicKeys.join(' ') };
  return signToken(clusterSecrets, PURPOSE, claims, Date.now() + LIMITS.partTokenTtlMs);
}

/** @throws Error unless a control node of the cluster signed the keys for this link, just now */
export function readConnectionKeys(
  clusterSecrets: Ring<string>,
  link: KeyLink,
  signed: string,
): string[] {
  const claims = verifyToken(clusterSecrets, PURPOSE, signed);
  if (typeof claims === 'string') throw new Error(`connection keys: the signature is ${claims}`);
  const { nodeId, hostId, region, keys } = claims;
  if (nodeId !== link.nodeId || hostId !== link.hostId || region !== link.region) {
    throw new Error('connection keys: signed for another link');
  }
  return checkKeys(String(keys).split(' '), 'connection keys');
}
