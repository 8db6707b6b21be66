import { lookup, type LookupAddress } from 'node:dns';
import type { LookupFunction } from 'node:net';
import type { ReachableNetworks } from './reachable-networks.ts';

/**
 * Resolves names for connections, without those of their addresses that are out of reach: a caller
 * chooses the name, and its addresses may change at any time. What is checked is connected to.
 * @param refusal the error for a name without any other address
 */
export const reachableLookup =
  (networks: ReachableNetworks, refusal: (host: string) => Error): LookupFunction =>
  (hostname, options, callback) => {
    lookup(hostname, { ...options, all: true }, (error, found: LookupAddress[]) => {
      if (error !== null) return callback(error, '', 0);
      const allowed = found.filter(({ address }) => networks.allows(address));
      const [first] = allowed;
      if (first === undefined) return callback(refusal(hostname), '', 0);
      if (options.all === true) return callback(null, allowed);
      return callback(null, first.address, first.family);
    });
  };
