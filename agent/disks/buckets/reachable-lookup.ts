import { isIP, type LookupFunction } from 'node:net';
import { reachableLookup } from '../../../shared/reachable-lookup.ts';
import { portOf, type ReachableNetworks } from '../../../shared/reachable-networks.ts';
import { BucketError } from './bucket.ts';

/** The code of a refusal, which is all that some SDKs keep of an error besides its message. */
export const ADDRESS_REFUSED = 'ERR_ADDRESS_REFUSED';

const refusal = (host: string): BucketError & { readonly code: string } => {
  const message = `${host} is a private address; BUCKET_REACHABLE_NETWORKS says which may be used`;
  return Object.assign(new BucketError('away', message), { code: ADDRESS_REFUSED });
};

/** @throws BucketError for an endpoint that is an address out of reach; names are judged later */
export function refuseAddress(endpoint: string, networks: ReachableNetworks): void {
  const url = new URL(endpoint);
  const host = url.hostname.replaceAll(/^\[|\]$/gu, '');
  if (isIP(host) !== 0 && !networks.allows(host, portOf(url))) throw refusal(host);
}

/** Connects to addresses within reach only, whatever the name of the endpoint leads to. */
export const bucketLookup = (endpoint: string, networks: ReachableNetworks): LookupFunction =>
  reachableLookup(networks, portOf(new URL(endpoint)), refusal);
