import type { LookupFunction } from 'node:net';
import { connect, type Socket } from 'node:net';
import { once } from 'node:events';
import { PROXY_LIMITS } from './limits.ts';

/** Options of net.connect that try these addresses, one after the other. */
export const toAddresses = (addresses: readonly string[]) => ({
  lookup: lookupOf(addresses),
  autoSelectFamily: true,
  autoSelectFamilyAttemptTimeout: PROXY_LIMITS.attemptMs,
});

const lookupOf =
  (addresses: readonly string[]): LookupFunction =>
  (_name, { all }, callback) => {
    const found = addresses.map((address) => ({ address, family: 4 }));
    if (all === true) callback(null, found);
    else callback(null, found[0]?.address ?? '', 4);
  };

/** @throws Error when no address answers in time */
export async function connectTo(addresses: readonly string[], port: number): Promise<Socket> {
  const options = { host: 'upstream', port, allowHalfOpen: true, noDelay: true, keepAlive: true };
  const socket = connect({ ...options, ...toAddresses(addresses) });
  try {
    await once(socket, 'connect', { signal: AbortSignal.timeout(PROXY_LIMITS.connectMs) });
    return socket;
  } catch (error) {
    socket.destroy();
    throw error;
  }
}
