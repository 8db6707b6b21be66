import Type from 'typebox';
import { parseImageReference } from '../image-reference.ts';
import { ZONE_DEFAULT, zonePattern } from '../ingress-hostname.ts';
import { SCHEMA_LIMITS } from '../schemas/limits.ts';
import { isReachableNetwork } from '../reachable-networks.ts';
import { MINUTE_MS, MiB, TiB } from '../units.ts';
import { absolutePath, anySecret, flag, integer, list, port, ring, text } from './kinds.ts';

function isAlias(pair: string): boolean {
  const [, reference] = /^([^=]+)=default$/u.exec(pair) ?? [];
  try {
    return reference !== undefined && parseImageReference(reference) !== undefined;
  } catch {
    return false;
  }
}

export const ControlSettings = Type.Object({
  CONTROL_HOST: text({
    form: 'address',
    default: '127.0.0.1',
    description: 'address for both ports',
  }),
  CONTROL_PORT: port({ setUp: '8700', description: 'HTTP API' }),
  CONTROL_TLS_CERT: Type.Optional(
    absolutePath({
      fallback: 'none: no TLS',
      description:
        'certificate chain (PEM) of `CONTROL_PORT`, which then speaks TLS alone ([TLS](operations.md#tls))',
    }),
  ),
  CONTROL_TLS_KEY: Type.Optional(
    absolutePath({ fallback: 'none', description: 'key (PEM) of `CONTROL_TLS_CERT`' }),
  ),
  CONTROL_INTERNAL_PORT: port({
    setUp: '8701',
    description: 'agent links, health, metrics. Never public',
  }),
  CONTROL_INTERNAL_URL: Type.Optional(
    text({
      pattern: '^https?://',
      form: 'URL',
      fallback: '`http://<CONTROL_HOST>:<CONTROL_INTERNAL_PORT>`, or `https://`',
      description:
        'how agents reach this node; set it when `CONTROL_HOST` is not an address that they can use',
    }),
  ),
  CONTROL_LEAVE_MS: integer({
    unit: 'ms',
    default: 0,
    minimum: 0,
    maximum: 5 * MINUTE_MS,
    description:
      'how long the node goes on serving after it was told to stop, while `/readyz` answers 503: load balancers take it out meanwhile ([upgrade](operations.md#upgrade)). `scripts/install` sets 5000',
  }),
  CONTROL_LINKED_HOSTS: integer({
    default: 1000,
    minimum: 1,
    maximum: 100_000,
    description:
      'how many hosts link to this node by themselves. In a region with more it knows a random part of them, and asks any other host for a link when a call needs it ([scale](scale.md#past-that))',
  }),
  CONSOLE_DIR: Type.Optional(
    absolutePath({
      fallback: '`.local/console` of the checkout',
      description:
        'what `clients/console/scripts/build.ts` has built, which [`/console`](console.md) serves',
    }),
  ),
  PUBLIC_BASE_URL: text({
    pattern: '^https?://',
    form: 'URL',
    setUp: '`http://127.0.0.1:<CONTROL_PORT>`',
    description: 'what callers see, in `/openapi.json` and in share links',
  }),
  SIGNING_KEYS: ring({
    ...anySecret,
    setUp: 'made by set-up',
    description:
      'the first signs share links and, by a key derived from it, connection URLs; all verify. The same on every control node; see [rotation](operations.md#rotation-of-secrets)',
  }),
  INGRESS_ZONE: text({
    pattern: zonePattern,
    form: 'domain',
    default: ZONE_DEFAULT,
    description:
      'the domain below which ports of sandboxes have their hostnames (`<port>-<route-id>.<zone>`); the same for control and agents',
  }),
  REGION_PREVIEW: flag({
    description: '`true`: only accounts that were let in may create disks here',
  }),
  EXEC_TIMEOUT_MS: integer({
    unit: 'ms',
    default: 120_000,
    minimum: 100,
    maximum: SCHEMA_LIMITS.execTimeoutMsMax,
    description: 'deadline of an exec with all waiting',
  }),
  IMAGE_ALIASES: list({
    default: ['ubuntu:26.04=default', 'ubuntu=default', 'default=default'],
    form: '`<reference>=default` pairs',
    expected: 'pairs <reference>=default, separated by commas',
    isFit: isAlias,
    description:
      "what callers may name as `base_image` whatever the host's image is, besides what the image says it is itself. A missing tag counts as `latest`, a missing registry as `docker.io`",
  }),
  AUDIT_LOG: Type.Optional(
    text({
      form: 'path',
      fallback: 'none',
      setUp: '`.local/log/audit.log`',
      description:
        'the file that each change is appended to, as JSON ([accounts.md](accounts.md#audit)). It can be renamed or cut at any time',
    }),
  ),
  WEBHOOK_REACHABLE_NETWORKS: list({
    form: 'CIDR blocks, each with a port or without',
    expected: 'networks in CIDR form, such as 10.1.0.0/16 or 127.0.0.1/32:9000',
    isFit: isReachableNetwork,
    description:
      'private networks that webhooks may be of, written as those of `BUCKET_REACHABLE_NETWORKS`; `http://` works only there ([accounts.md](accounts.md#webhooks))',
  }),
  REDIS_DATA_DIR: Type.Optional(
    text({
      form: 'path',
      fallback: 'none',
      setUp: '`.local/redis`',
      description:
        'where Redis keeps its files, on a node that can see them. Set it on at least one node, which then watches the free space there for all',
    }),
  ),
  REDIS_RESERVE_BYTES: integer({
    unit: 'bytes',
    default: 256 * MiB,
    minimum: 0,
    maximum: TiB,
    description:
      'below this much free space in `REDIS_DATA_DIR` POST and PUT are refused with `directory_full`; what runs goes on, reading, deleting and connecting to sandboxes too',
  }),
});
