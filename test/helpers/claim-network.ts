import { randomInt } from 'node:crypto';
import { run } from '../../agent/system/spawn.ts';

/** Addresses in each network, those with a meaning of their own included. */
export const NETWORK_ADDRESSES = 16;

/**
 * Parts of TEST-NET-2 and TEST-NET-3 (RFC 5737). TEST-NET-1 is the network of some machines, and
 * others are kept from the internet by names that lead to 203.0.113.0/25.
 */
const NETWORKS = [
  ...Array.from({ length: 16 }, (_, index) => ({ base: '198.51.100', first: 16 * index })),
  ...Array.from({ length: 8 }, (_, index) => ({ base: '203.0.113', first: 128 + 16 * index })),
];

/** A /28: the first three numbers of its addresses, and the lowest last number. */
interface ClaimedNetwork {
  readonly base: string;
  readonly first: number;
}

/**
 * Gives a link of the host's the route to a /28 that no other test has: the kernel refuses a second
 * route to the same one. It goes with the link.
 * @throws Error when tests have all of them
 */
export async function claimNetwork(link: string): Promise<ClaimedNetwork> {
  const start = randomInt(NETWORKS.length);
  for (const network of [...NETWORKS.slice(start), ...NETWORKS.slice(0, start)]) {
    try {
      await run('ip', ['route', 'add', `${network.base}.${network.first}/28`, 'dev', link]);
      return network;
    } catch (error) {
      if (!String(error).includes('File exists')) throw error;
    }
  }
  throw new Error('tests have all networks');
}
