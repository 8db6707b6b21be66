import type { Static } from 'typebox';
import type { ConnectionLimits } from '../http/connections.ts';
import { descriptorLimit, type PermitsMax, shareDescriptors } from '../http/descriptors.ts';
import { LIMITS } from '../limits.ts';
import type { HttpSettingTexts } from './cluster-settings.ts';
import { refuseProblems } from './read-settings.ts';

type HttpSettingValues = Static<typeof HttpSettingTexts>;

/** The limits that a process sets on its callers. */
export interface HttpSettings {
  readonly public: ConnectionLimits;
  /** Limits of the port for other parts of the cluster. */
  readonly internal: ConnectionLimits;
  /** Limits of the public port behind the hostnames of sandboxes' ports. */
  readonly ingress: ConnectionLimits;
  /** How many requests of the object API and downloads by share link may run at the same time. */
  readonly permits: PermitsMax;
  /** Origins whose pages may read answers of the public port, besides what disks allow. */
  readonly allowedOrigins: readonly string[];
  /** Addresses and CIDR blocks of proxies whose `X-Forwarded-For` is believed. */
  readonly trustedProxies: readonly string[];
}

/**
 * How much longer the internal port waits for a peer that stalls. Control can tell whether its
 * caller or the host is slow and must give up first.
 */
const INTERNAL_PATIENCE = 3;

/**
 * @param most how many transfers to serve at the same time if there are enough descriptors
 * @throws ConfigurationError when a limit is more than the descriptors allow
 */
export function readHttpSettings(settings: HttpSettingValues, most: PermitsMax): HttpSettings {
  const descriptors = shareDescriptors(descriptorLimit(), most);
  const bounds = {
    // More connections than this could take the descriptors that the process itself needs.
    CONNECTIONS_MAX: descriptors.publicConnections,
    CONNECTIONS_PER_ADDRESS_MAX: descriptors.publicConnections,
    OBJECT_REQUESTS_MAX: descriptors.objectRequests,
    DOWNLOADS_MAX: descriptors.downloads,
  };
  refuseProblems(
    (Object.keys(bounds) as (keyof typeof bounds)[])
      .filter((name) => (settings[name] ?? 0) > bounds[name])
      .map((name) => `${name} must be at most ${bounds[name]} with this limit of open files`),
  );
  const max = settings.CONNECTIONS_MAX ?? descriptors.publicConnections;
  const perAddressMax = settings.CONNECTIONS_PER_ADDRESS_MAX ?? Math.ceil(max / 4);
  const { TRANSFER_STALLED_MS: stalledMs, TRUSTED_PROXIES: trustedProxies } = settings;
  const { TRANSFER_BYTES_PER_SECOND_MIN: bytesPerSecondMin } = settings;
  const proxies = [...new Set([...settings.PROXY_ADDRESSES, ...trustedProxies])];
  const crowdedStalledMs = Math.min(stalledMs, LIMITS.transferCrowdedStalledMs);
  const transfers = { bytesPerSecondMin, stalledMs, crowdedStalledMs };
  return {
    allowedOrigins: settings.ALLOWED_ORIGINS,
    trustedProxies,
    permits: {
      objectRequests: settings.OBJECT_REQUESTS_MAX ?? descriptors.objectRequests,
      downloads: settings.DOWNLOADS_MAX ?? descriptors.downloads,
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
