import { lookup, type LookupAddress } from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';
import type { ReachableNetworks } from '../../shared/reachable-networks.ts';
import { BucketError } from './bucket.ts';

/** The code of a refusal, which is all that some SDKs keep of an error besides its message. */
export const ADDRESS_REFUSED = 'ERR_ADDRESS_REFUSED';

const refusal = (host: string): BucketError & { readonly code: string } => {
  const message = `${host} is a private address; BUCKET_REACHABLE_NETWORKS says which may be used`;
  return Object.assign(new BucketError('other', message), { code: ADDRESS_REFUSED });
};

/** @throws BucketError for an endpoint that is an address out of reach; names are judged later */
export function refuseAddress(endpoint: string, networks: ReachableNetworks): void {
  const host = new URL(endpoint).hostname.replaceAll(/^\[|\]$/gu, '');
  if (isIP(host) !== 0 && !networks.allows(host)) throw refusal(host);
}

/**
 * Resolves names for connections, without those of their addresses that are out of reach: the owner
 * of a disk chooses the name, and its addresses may change at any time.
 */
export const reachableLookup =
  (networks: ReachableNetworks): LookupFunction =>
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
