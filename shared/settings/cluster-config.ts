import type { Static } from 'typebox';
import type { ClusterSettings, RedisSettings } from './cluster-settings.ts';
import { refuseProblems } from './read-settings.ts';
import type { CertificatePaths } from '../tls/certificates.ts';
import { type Ring, toRing } from '../secrets.ts';
import type { LogSettings } from '../log.ts';
import type { RedisTarget } from '../tls/redis-tls.ts';

/** Settings that control and agent have in common. */
export interface ClusterConfig {
  readonly redis: RedisTarget;
  /** How many replicas of Redis must have a change before it is answered. */
  readonly confirmingReplicas: number;
  /** Agents and control nodes of another cluster are refused. */
  readonly clusterId: string;
  /** Sign the messages between control nodes and agents. */
  readonly clusterSecrets: Ring<string>;
  /** This node's certificate for internal ports; undefined: they are not encrypted. */
  readonly tls: CertificatePaths | undefined;
  /** Seal disk tokens; never in Redis. 32 bytes each. */
  readonly encryptionKeys: Ring<Buffer>;
  /** `<cloud>-<region>`; the part before the first `-` is shown as a disk's `provider`. */
  readonly region: string;
  /** Private networks that object storage behind disks may be of. */
  readonly bucketNetworks: readonly string[];
  readonly log: LogSettings;
}

type Texts = Readonly<Record<string, unknown>>;

/** The problem that only some of these settings are there. */
export function togetherOrNone(settings: Texts, names: readonly string[]): string[] {
  const present = names.find((name) => settings[name] !== undefined);
  if (present === undefined) return [];
  const missing = names.filter((name) => settings[name] === undefined);
  return missing.map((name) => `${name} is not set, but ${present} is`);
}

/** The certificate that two settings name. */
export const certificatePaths = (
  certPath: string | undefined,
  keyPath: string | undefined,
): CertificatePaths | undefined =>
  certPath === undefined || keyPath === undefined ? undefined : { certPath, keyPath };

const WAYS = ['REDIS_URL', 'REDIS_SENTINELS', 'REDIS_CLUSTER_NODES'] as const;
/** Settings that only go with some of the ways to find Redis. */
const ONLY_WITH = [
  ['REDIS_SENTINEL_NAME', ['REDIS_SENTINELS']],
  ['REDIS_SENTINEL_PASSWORD', ['REDIS_SENTINELS']],
  ['REDIS_USERNAME', ['REDIS_SENTINELS', 'REDIS_CLUSTER_NODES']],
  ['REDIS_PASSWORD', ['REDIS_SENTINELS', 'REDIS_CLUSTER_NODES']],
] as const;

const isSet = (value: unknown): boolean =>
  Array.isArray(value) ? value.length > 0 : value !== undefined;

/** Problems that the settings of Redis have in combination. */
function redisProblems(settings: Static<typeof RedisSettings>): string[] {
  const { REDIS_URL: url, REDIS_TLS_CA, REDIS_TLS_CERT } = settings;
  const problems = togetherOrNone(settings, ['REDIS_TLS_CERT', 'REDIS_TLS_KEY']);
  const [way, second] = WAYS.filter((name) => isSet(settings[name]));
  if (way === undefined) {
    problems.push('REDIS_URL is not set, nor is REDIS_SENTINELS or REDIS_CLUSTER_NODES');
  }
  if (second !== undefined) problems.push(`${way} and ${second} are both set: unset one`);
  for (const [name, ways] of ONLY_WITH) {
    if (!isSet(settings[name]) || ways.some((each) => isSet(settings[each]))) continue;
    problems.push(`${name} is set, but ${ways.join(' or ')} is not`);
  }
  if (way === 'REDIS_SENTINELS' && settings.REDIS_SENTINEL_NAME === undefined) {
    problems.push('REDIS_SENTINEL_NAME is not set, but REDIS_SENTINELS is');
  }
  if (url === undefined) {
    if (REDIS_TLS_CERT !== undefined && REDIS_TLS_CA === undefined) {
      problems.push('REDIS_TLS_CA is not set, but REDIS_TLS_CERT is');
    }
  } else if (!url.startsWith('rediss:') && (REDIS_TLS_CA ?? REDIS_TLS_CERT) !== undefined) {
    problems.push('REDIS_URL must begin with rediss://, because REDIS_TLS_CA or _CERT is set');
  }
  return problems;
}

function toAddress(text: string): { host: string; port: number } {
  const { hostname, port } = new URL(`redis://${text}`);
  return { host: hostname.replace(/^\[(.*)\]$/u, '$1'), port: Number(port) };
}

/** @throws ConfigurationError */
export function readRedisTarget(settings: Static<typeof RedisSettings>): RedisTarget {
  refuseProblems(redisProblems(settings));
  const { REDIS_URL: url, REDIS_SENTINELS: sentinels, REDIS_TLS_CA: caPath } = settings;
  const tls = { caPath, certPath: settings.REDIS_TLS_CERT, keyPath: settings.REDIS_TLS_KEY };
  if (url !== undefined) return url.startsWith('rediss:') ? { url, tls } : { url };
  const access = {
    username: settings.REDIS_USERNAME,
    password: settings.REDIS_PASSWORD,
    tls: caPath === undefined ? undefined : tls,
  };
  if (sentinels.length === 0) {
    return { nodes: settings.REDIS_CLUSTER_NODES.map(toAddress), ...access };
  }
  return {
    sentinels: sentinels.map(toAddress),
    name: settings.REDIS_SENTINEL_NAME ?? '',
    sentinelPassword: settings.REDIS_SENTINEL_PASSWORD,
    ...access,
  };
}

/**
 * Where Redis fails over, one replica has a change before its answer, unless it is set otherwise.
 */
export const confirmingReplicas = ({
  REDIS_CONFIRMING_REPLICAS: replicas,
  REDIS_URL: url,
}: Static<typeof RedisSettings>): number => replicas ?? (url === undefined ? 1 : 0);

/** The keys, 32 bytes each. */
export const readEncryptionKeys = ({
  ENCRYPTION_KEY: keys,
}: Pick<Static<typeof ClusterSettings>, 'ENCRYPTION_KEY'>): Ring<Buffer> =>
  toRing(keys.map((key) => Buffer.from(key, 'base64')));

/** @throws ConfigurationError when settings do not go together */
export function readClusterConfig(settings: Static<typeof ClusterSettings>): ClusterConfig {
  const names = ['CLUSTER_TLS_CERT', 'CLUSTER_TLS_KEY', 'CLUSTER_TLS_CA'] as const;
  refuseProblems(togetherOrNone(settings, names));
  const tls = certificatePaths(settings.CLUSTER_TLS_CERT, settings.CLUSTER_TLS_KEY);
  return {
    redis: readRedisTarget(settings),
    confirmingReplicas: confirmingReplicas(settings),
    clusterId: settings.CLUSTER_ID,
    clusterSecrets: toRing(settings.CLUSTER_SECRET),
    tls: tls === undefined ? undefined : { ...tls, caPath: settings.CLUSTER_TLS_CA },
    encryptionKeys: readEncryptionKeys(settings),
    region: settings.REGION,
    bucketNetworks: settings.BUCKET_REACHABLE_NETWORKS,
    log: { level: settings.LOG_LEVEL, path: settings.LOG_FILE },
  };
}

/**
 * The URL of a node's internal port.
 * @param url the setting `name`, if it is set
 * @throws ConfigurationError when the URL says something else about TLS than the certificates
 */
export function readInternalUrl(
  { tls }: Pick<ClusterConfig, 'tls'>,
  { name, url, address }: { name: string; url: string | undefined; address: string },
): string {
  const scheme = tls === undefined ? 'http://' : 'https://';
  if (url === undefined) return scheme + address;
  const because = tls === undefined ? 'is not set' : 'is set';
  const problem = `${name} must begin with ${scheme}, because CLUSTER_TLS_CERT ${because}`;
  refuseProblems(url.startsWith(scheme) ? [] : [problem]);
  return url;
}
