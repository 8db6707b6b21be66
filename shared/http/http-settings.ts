import ipaddr from 'ipaddr.js';
import type { ConfigReader } from '../config.ts';
import type { ConnectionLimits } from './connections.ts';
import { isOrigin } from './cross-origin.ts';
import { descriptorLimit, type PlacesMax, shareDescriptors } from './descriptors.ts';
import { LIMITS } from '../limits.ts';
import { GiB } from '../units.ts';

/** The limits that a process sets on its callers. */
export interface HttpSettings {
  readonly public: ConnectionLimits;
  /** Limits of the port for other parts of the cluster. */
  readonly internal: ConnectionLimits;
  /** Limits of the public port behind the hostnames of sandboxes' ports. */
  readonly ingress: ConnectionLimits;
  /** How many requests of the object API and downloads by share link may run at the same time. */
  readonly places: PlacesMax;
  /** Origins whose pages may read answers of the public port, beside what disks allow. */
  readonly allowedOrigins: readonly string[];
}

const isAddress = (text: string): boolean => ipaddr.isValid(text) || ipaddr.isValidCIDR(text);

/**
 * How much longer the internal port waits for a peer that stalls. Control can tell whether its caller
 * or the host is slow and must give up first.
 */
const INTERNAL_PATIENCE = 3;

/** @param most how many transfers to serve at the same time if there are enough descriptors */
export function readHttpSettings(reader: ConfigReader, most: PlacesMax): HttpSettings {
  const descriptors = shareDescriptors(descriptorLimit(), most);
  const max = reader.integer('CONNECTIONS_MAX', {
    fallback: descriptors.publicConnections,
    min: 8,
    // More connections than this could take the descriptors that the process itself needs.
    max: descriptors.publicConnections,
  });
  const perAddressMax = reader.integer('CONNECTIONS_PER_ADDRESS_MAX', {
    fallback: Math.ceil(max / 4),
    min: 1,
    max: descriptors.publicConnections,
  });
  const stalledMs = reader.integer('TRANSFER_STALLED_MS', {
    fallback: LIMITS.transferStalledMs,
    min: 1_000,
    max: 3_600_000,
  });
  const bytesPerSecondMin = reader.integer('TRANSFER_BYTES_PER_SECOND_MIN', {
    fallback: LIMITS.transferBytesPerSecondMin,
    min: 1,
    max: GiB,
  });
  const proxies = reader.list('PROXY_ADDRESSES', '127.0.0.1,::1');
  if (!proxies.every(isAddress)) {
    reader.refuse('PROXY_ADDRESSES must be addresses or CIDR blocks, separated by commas');
  }
  const places = (name: string, fallback: number): number =>
    reader.integer(name, { fallback, min: 2, max: fallback });
  const crowdedStalledMs = Math.min(stalledMs, LIMITS.transferCrowdedStalledMs);
  const transfers = { bytesPerSecondMin, stalledMs, crowdedStalledMs };
  const expected = 'origins such as https://app.example.com, separated by commas, or *';
  return {
    allowedOrigins: reader.listOf('ALLOWED_ORIGINS', isOrigin, expected),
    places: {
      objectRequests: places('OBJECT_REQUESTS_MAX', descriptors.objectRequests),
      downloads: places('DOWNLOADS_MAX', descriptors.downloads),
    },
    public: { max, perAddressMax, proxies, transfers },
    ingress: {
      max: descriptors.ingressConnections,
      perAddressMax: Math.min(perAddressMax, descriptors.ingressConnections),
      proxies,
      transfers,
    },
    internal: {
      max: descriptors.internalConnections,
      perAddressMax: descriptors.internalConnections,
      proxies: [],
      transfers: {
        bytesPerSecondMin,
        stalledMs: INTERNAL_PATIENCE * stalledMs,
        crowdedStalledMs: INTERNAL_PATIENCE * stalledMs,
      },
    },
  };
}
