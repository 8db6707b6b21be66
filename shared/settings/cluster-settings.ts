import ipaddr from 'ipaddr.js';
import Type from 'typebox';
import { isOrigin } from '../http/cross-origin.ts';
import { regionPattern } from '../ids.ts';
import { LIMITS } from '../limits.ts';
import { isReachableNetwork } from '../reachable-networks.ts';
import { GiB } from '../units.ts';
import { absolutePath, anySecret, integer, list, ring, text } from './kinds.ts';
import { tracingSettings } from './tracing-settings.ts';

/* Settings that control and agent have in common. */

const KEY_BYTES = 32;
const isAddress = (item: string): boolean => ipaddr.isValid(item) || ipaddr.isValidCIDR(item);
const ADDRESSES = {
  form: 'addresses, CIDR blocks',
  expected: 'addresses or CIDR blocks, separated by commas',
  isFit: isAddress,
};
/** A name, an IPv4 address, or an IPv6 address in brackets; and a port. */
const isHostAndPort = (item: string): boolean =>
  /^(?:[\w.-]+|\[[\da-f:.]+\]):\d{1,5}$/iu.test(item) && URL.canParse(`redis://${item}`);
const PLACES = { minimum: 2, maximum: 1_000_000 } as const;

/** Settings of whatever uses the directory: control, agent and `scripts/admin`. */
const redisSettings = {
  REDIS_URL: Type.Optional(
    text({
      pattern: '^rediss?://',
      form: 'URL',
      fallback: 'required, or `REDIS_SENTINELS`, or `REDIS_CLUSTER_NODES`',
      setUp: 'made by set-up',
      description: 'a single Redis: `redis://:password@host:port/db`, or `rediss://` for TLS',
    }),
  ),
  REDIS_SENTINELS: list({
    form: '`host:port`',
    expected: 'host:port of each Sentinel, separated by commas',
    isFit: isHostAndPort,
    description:
      'instead of `REDIS_URL`: the Sentinels that know the primary ([Redis that fails over](operations.md#redis-that-fails-over)). They and Redis speak TLS when `REDIS_TLS_CA` is set',
  }),
  REDIS_CLUSTER_NODES: list({
    form: '`host:port`',
    expected: 'host:port of some nodes, separated by commas',
    isFit: isHostAndPort,
    description:
      'instead of `REDIS_URL`: some nodes of a Redis Cluster, which tell of the others ([Redis Cluster](operations.md#redis-cluster)). All speak TLS when `REDIS_TLS_CA` is set',
  }),
  REDIS_SENTINEL_NAME: Type.Optional(
    text({
      pattern: String.raw`^[\w.-]{1,100}$`,
      form: 'letters, digits, `.`, `-`, `_`',
      fallback: 'required with `REDIS_SENTINELS`',
      description: 'what the Sentinels call the primary (`sentinel monitor <name>`)',
    }),
  ),
  REDIS_SENTINEL_PASSWORD: Type.Optional(
    text({ fallback: 'none', description: 'password of the Sentinels (`requirepass` there)' }),
  ),
  REDIS_USERNAME: Type.Optional(
    text({ fallback: 'none', description: 'user of Redis, without `REDIS_URL`' }),
  ),
  REDIS_PASSWORD: Type.Optional(
    text({ fallback: 'none', description: 'password of Redis, without `REDIS_URL`' }),
  ),
  REDIS_CONFIRMING_REPLICAS: Type.Optional(
    integer({
      minimum: 0,
      maximum: 9,
      fallback: '0 with `REDIS_URL`, else 1',
      description:
        'a change is answered, and a lease counts, once so many replicas of Redis have it. With fewer replicas connected, changes answer 500 `outcome_unknown`',
    }),
  ),
  REDIS_TLS_CA: Type.Optional(
    absolutePath({
      fallback: 'those of the system',
      description: 'certificates (PEM) of the authorities that may have signed the one of Redis',
    }),
  ),
  REDIS_TLS_CERT: Type.Optional(
    absolutePath({
      fallback: 'none',
      description: 'certificate (PEM) that Redis is shown, where it asks for one',
    }),
  ),
  REDIS_TLS_KEY: Type.Optional(
    absolutePath({ fallback: 'none', description: 'key (PEM) of `REDIS_TLS_CERT`' }),
  ),
  REGION: text({
    pattern: regionPattern,
    form: '`<cloud>-<region>`',
    setUp: '`local-dev`',
    description: 'disks belong to their region; another value hides them',
  }),
};

const clusterSettings = {
  CLUSTER_ID: text({
    pattern: '^[A-Za-z0-9-]{3,64}$',
    form: '3 to 64 letters, digits, `-`',
    setUp: 'made by set-up',
    description: 'control and agents of another cluster are refused',
  }),
  CLUSTER_SECRET: ring({
    ...anySecret,
    setUp: 'made by set-up',
    description:
      "the first signs the agents' links and control's requests to them, and seals queued jobs; each is accepted ([rotation](operations.md#rotation-of-secrets))",
  }),
  CLUSTER_TLS_CERT: Type.Optional(
    absolutePath({
      fallback: 'none: no TLS',
      description:
        'certificate chain (PEM) of this node for the internal ports, where it both serves and connects ([TLS](operations.md#tls)). With `CLUSTER_TLS_KEY` and `CLUSTER_TLS_CA`, or none of the three',
    }),
  ),
  CLUSTER_TLS_KEY: Type.Optional(
    absolutePath({ fallback: 'none', description: 'key (PEM) of `CLUSTER_TLS_CERT`' }),
  ),
  CLUSTER_TLS_CA: Type.Optional(
    absolutePath({
      fallback: 'none',
      description:
        "certificates (PEM) of the cluster's own authorities: internal ports answer only peers with a certificate that one of them has signed",
    }),
  ),
  BUCKET_REACHABLE_NETWORKS: list({
    form: 'CIDR blocks, each with a port or without',
    expected: 'networks in CIDR form, such as 10.1.0.0/16 or 127.0.0.1/32:9000',
    isFit: isReachableNetwork,
    description:
      'private networks that the endpoints of buckets behind disks may be of; `http://` works only there. Every account may then reach what listens there, so name the port as well: `10.0.0.9/32:9000`, `fd00::9/128:9000`',
  }),
  ENCRYPTION_KEY: ring({
    each: `${KEY_BYTES} bytes in base64`,
    isFit: (value) => Buffer.from(value, 'base64').length === KEY_BYTES,
    setUp: 'made by set-up',
    description:
      'the first seals disk tokens, credentials of buckets, secrets of webhooks and of network policies, and sessions of the console; each opens them ([rotation](operations.md#rotation-of-secrets)). If one is lost, what it has sealed cannot be opened again',
  }),
  LOG_LEVEL: Type.Enum(['info', 'fatal', 'error', 'warn', 'debug', 'trace', 'silent'], {
    default: 'info',
    description: 'level of pino',
  }),
  LOG_FILE: Type.Optional(
    absolutePath({
      fallback: 'standard output',
      description:
        'file that the log is appended to. Within seconds of its being renamed or removed the log goes on in a new one ([logs](operations.md#logs))',
    }),
  ),
};

const httpSettings = {
  CONNECTIONS_MAX: Type.Optional(
    integer({
      minimum: 8,
      maximum: LIMITS.connectionsMax,
      fallback: 'three eighths of the descriptors, at most 10,000',
      description:
        'connections to the public port of control, and of the agent. A further one evicts the connection that has been idle longest; when all are serving a request it is answered 503. Cannot be more than the share of what `ulimit -Hn` (`LimitNOFILE`) allows, which should be 16,384 or more',
    }),
  ),
  CONNECTIONS_PER_ADDRESS_MAX: Type.Optional(
    integer({
      minimum: 1,
      maximum: LIMITS.connectionsMax,
      fallback: 'a quarter of `CONNECTIONS_MAX`',
      description: 'the same for one address, an IPv6 address with its /64',
    }),
  ),
  PROXY_ADDRESSES: list({
    ...ADDRESSES,
    default: ['127.0.0.1', '::1'],
    description:
      'load balancers and proxies, many clients behind each: no limit for one address binds them. Those of `TRUSTED_PROXIES` are among them',
  }),
  TRUSTED_PROXIES: list({
    ...ADDRESSES,
    description:
      "proxies whose `X-Forwarded-For` is believed, by control and agents: `allowedIps`, fair shares and logs then go by the client's address ([behind a proxy](operations.md#behind-a-proxy)). Others may send what they like",
  }),
  OBJECT_REQUESTS_MAX: Type.Optional(
    integer({
      ...PLACES,
      fallback: 'agent 512, control 1024, or a sixteenth of the descriptors',
      description:
        'requests of the object API at the same time. One account, or one address, gets at most half, and less when others are there. Cannot be more than the default',
    }),
  ),
  DOWNLOADS_MAX: Type.Optional(
    integer({
      ...PLACES,
      fallback: 'agent 256, control 1024, or a thirty-second of the descriptors',
      description:
        'downloads by share links at the same time; one link, one account, or one address gets at most half of them. Cannot be more than the default',
    }),
  ),
  ALLOWED_ORIGINS: list({
    form: 'origins, or `*` for all',
    expected: 'origins such as https://app.example.com, separated by commas, or *',
    isFit: isOrigin,
    setUp: 'those of control',
    description:
      'origins of web applications, such as `https://app.example.com`. Their pages may read what control and agents answer, and open process connections ([API](api.md#browsers)). Terminals of the [console](console.md) need its own origin here. The same on all nodes',
  }),
  TRANSFER_STALLED_MS: integer({
    unit: 'ms',
    default: LIMITS.transferStalledMs,
    minimum: 1_000,
    maximum: 3_600_000,
    description: 'a transfer that moves nothing for so long is broken off',
  }),
  TRANSFER_BYTES_PER_SECOND_MIN: integer({
    unit: 'bytes/s',
    default: LIMITS.transferBytesPerSecondMin,
    minimum: 1,
    maximum: GiB,
    description:
      'a transfer that is slower on average is broken off, too; see [connections](operations.md#connections)',
  }),
};

export const RedisSettings = Type.Object(redisSettings);
export const ClusterSettings = Type.Object({ ...redisSettings, ...clusterSettings });
export const HttpSettingTexts = Type.Object(httpSettings);
/** All that control and agent have in common, in the order of the documentation. */
export const CommonSettings = Type.Object({
  ...redisSettings,
  ...clusterSettings,
  ...httpSettings,
  ...tracingSettings,
});
