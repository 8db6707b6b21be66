import type { LookupAddress } from 'node:dns';
import { lookup } from 'node:dns/promises';
import type { LookupFunction } from 'node:net';
import { toError } from './errors.ts';
import type { ReachableNetworks } from './reachable-networks.ts';

/** Finds all addresses of a name. */
type FindAddresses = (
  hostname: string,
  options: Parameters<LookupFunction>[1],
) => Promise<LookupAddress[]>;

const findBySystem: FindAddresses = (hostname, options) =>
  lookup(hostname, { ...options, all: true });

/**
 * Resolves names for connections, without those of their addresses that are out of reach: a caller
 * chooses the name, and its addresses may change at any time. What is checked is connected to.
 * @param port the port of all connections that use it
 * @param refusal the error for a name without any other address
 */
export const reachableLookup =
  (
    networks: ReachableNetworks,
    port: number,
    refusal: (host: string) => Error,
    find: FindAddresses = findBySystem,
  ): LookupFunction =>
  (hostname, options, callback) => {
    const answer = (found: readonly LookupAddress[]): void => {
      const allowed = found.filter(({ address }) => networks.allows(address, port));
      const [first] = allowed;
      if (first === undefined) return callback(refusal(hostname), '', 0);
      if (options.all === true) return callback(null, allowed);
      return callback(null, first.address, first.family);
    };
    find(hostname, options).then(answer, (error: unknown) => callback(toError(error), '', 0));
  };
