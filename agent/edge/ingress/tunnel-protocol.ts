import type { IncomingHttpHeaders } from 'node:http';
import Type from 'typebox';
import { accountIdPattern, hostIdPattern, sandboxIdPattern } from '../../../shared/ids.ts';
import type { Claims } from '../../../shared/links/single-use-token.ts';
import { compile } from '../../../shared/validate.ts';
import type { DoorFault, PortRef } from './messages.ts';

/*
 * A tunnel leads from one agent's ingress to a port of another agent's sandbox: an upgraded request
 * to the owner's internal port, with a token of the cluster that names host, sandbox and port and
 * works once. The owner passes bytes on and judges nothing else, so no request can go round in
 * circles.
 */

export const TUNNEL_PATH = '/ingress-tunnel';
export const TUNNEL_UPGRADE = 'berth-tunnel';
export const TUNNEL_PURPOSE = 'ingress-tunnel';
export const PROOF_HEADER = 'x-berth-proof';
const FAULT_HEADER = 'x-berth-fault';

const faults: readonly DoorFault[] = [
  'nothing_listens',
  'not_found',
  'not_running',
  'unavailable',
  'timeout',
];

export const faultHeader = (fault: DoorFault): string => `${FAULT_HEADER}: ${fault}`;

/** Why the owner gave no tunnel. */
export const readTunnelFault = (headers: IncomingHttpHeaders): DoorFault =>
  faults.find((fault) => fault === headers[FAULT_HEADER]) ?? 'unavailable';

const TunnelClaims = Type.Object({
  accountId: Type.String({ pattern: accountIdPattern }),
  sandboxId: Type.String({ pattern: sandboxIdPattern }),
  hostId: Type.String({ pattern: hostIdPattern }),
  port: Type.String({ pattern: '^[1-9][0-9]{0,4}$' }),
  mayWake: Type.Enum(['yes', 'no']),
});
const check = compile(TunnelClaims);

export const tunnelClaims = (
  { accountId, sandboxId, hostId, port }: PortRef,
  mayWake: boolean,
): Record<string, string> => ({
  ...{ accountId, sandboxId, hostId, port: String(port) },
  mayWake: mayWake ? 'yes' : 'no',
});

/** @throws AppError unless the claims are those of a tunnel */
export function readTunnelClaims(claims: Claims): { ref: PortRef; mayWake: boolean } {
  const { port, mayWake, ...ref } = check(claims, 'tunnel');
  const { accountId, sandboxId, hostId } = ref;
  const named = { accountId, sandboxId, hostId, port: Number(port) };
  return { ref: named, mayWake: mayWake === 'yes' };
}
