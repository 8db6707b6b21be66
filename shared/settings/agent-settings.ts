import Type from 'typebox';
import { formatImageReference, parseImageReference } from '../image-reference.ts';
import { ZONE_DEFAULT, zonePattern } from '../ingress-hostname.ts';
import { LIMITS } from '../limits.ts';
import { publicUrlPattern } from '../links/stream-protocol.ts';
import { DAY_MS, GiB, HOUR_MS, MiB, TiB } from '../units.ts';
import { absolutePath, integer, list, port, text } from './kinds.ts';
import { sandboxSettings } from './sandbox-settings.ts';

function isImageReference(reference: string): boolean {
  try {
    return formatImageReference(parseImageReference(reference)) !== '';
  } catch {
    return false;
  }
}

const placeSettings = {
  UV_THREADPOOL_SIZE: Type.Optional(
    integer({
      minimum: 1,
      maximum: 1024,
      fallback: '4; `Procfile`: 32',
      description:
        'threads for calls that wait for file systems; read from the environment only. Accounts have shares of three quarters of them, at most 4 each; with fewer than 16 the agent logs `threads:tooFew`, because few accounts can hold them all',
    }),
  ),
  AGENT_HOST: text({
    form: 'address',
    default: '127.0.0.1',
    description: 'address for both ports',
  }),
  AGENT_PORT: port({ setUp: '8710', description: 'public address of the host: the object API' }),
  AGENT_TLS_CERT: Type.Optional(
    absolutePath({
      fallback: 'none: no TLS',
      description:
        'certificate chain (PEM) of `AGENT_PORT`, which then speaks TLS alone ([TLS](operations.md#tls))',
    }),
  ),
  AGENT_TLS_KEY: Type.Optional(
    absolutePath({ fallback: 'none', description: 'key (PEM) of `AGENT_TLS_CERT`' }),
  ),
  AGENT_ADMIN_PORT: port({
    setUp: '8711',
    description: 'data endpoint, health, metrics. Never public',
  }),
  AGENT_INTERNAL_URL: Type.Optional(
    text({
      pattern: '^https?://',
      form: 'URL',
      fallback: '`http://<AGENT_HOST>:<AGENT_ADMIN_PORT>`, or `https://`',
      description:
        'how control nodes and other hosts reach this one; set it when `AGENT_HOST` is not an address that they can use',
    }),
  ),
  AGENT_PUBLIC_URL: text({
    pattern: publicUrlPattern,
    form: 'URL',
    setUp: '`http://127.0.0.1:<AGENT_PORT>`',
    description:
      'told to control; what clients know as `S3_URL`, and where connection URLs of sandboxes lead: with `https://` they become `wss://`. No query; a path stays in front',
  }),
  AGENT_DATA_DIR: absolutePath({
    setUp: '`.local/agent`',
    description:
      'host id, journal, sandboxes, templates; no disks, which are mounted in `/run/berth/<host id>`. Without symbolic links, one agent each',
  }),
  STORAGE_DIR: absolutePath({ setUp: '`.local/storage`', description: 'disks of the region' }),
  STORAGE_RESERVE_BYTES: integer({
    unit: 'bytes',
    default: GiB,
    minimum: 0,
    maximum: TiB,
    description:
      'below this much free space, of `STORAGE_DIR` or `AGENT_DATA_DIR`, commands on disks, new disks, and sandboxes that are to start are refused; below a quarter of it running commands on disks are ended. Guests write on until nothing is left: see [free space for sandboxes](operations.md#free-space-for-sandboxes)',
  }),
  STORAGE_FENCE_COMMAND: Type.Optional(
    absolutePath({
      fallback: 'none: hosts cannot be fenced',
      description:
        "program that shuts the host whose id is its argument out of `STORAGE_DIR`, within 10 s, and exits with 0 once that is certain ([fencing](operations.md#fencing)). Of the agent's variables it has `PATH` and those that begin with `CEPH_`. The same on all hosts",
    }),
  ),
  DISK_SIZE_BYTES: integer({
    unit: 'bytes',
    default: 256 * GiB,
    minimum: 16 * MiB,
    maximum: 16 * TiB,
    description:
      'size of new disks. Images are sparse. Existing disks keep theirs; there is no resizing',
  }),
  BUCKET_SETTLE_MS: integer({
    unit: 'ms',
    default: 20_000,
    minimum: 100,
    maximum: HOUR_MS,
    description:
      'how long the answer of a command waits for the bucket behind its disk before it fails',
  }),
  AZURE_AUTHORITY_HOST: text({
    default: 'https://login.microsoftonline.com',
    pattern: '^https://[^/?#@]+$',
    form: 'URL',
    description:
      'where applications of Azure get their tokens for `azure-blob` mounts; another one in national clouds',
  }),
  AGENT_CGROUP: text({
    default: '/berth',
    pattern: '^(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*){1,8}$',
    form: 'path below `/sys/fs/cgroup`',
    description:
      'parent control group. `scripts/install` sets one that systemd delegates: `/berth.slice/berth-machines.service`',
  }),
};

const imageSettings = {
  DEFAULT_IMAGE_DIR: absolutePath({
    setUp: 'made by set-up',
    description: 'root file system of the containers; read-only to them',
  }),
  IMAGE_REGISTRIES: list({
    form: 'URLs',
    expected: 'URLs such as https://registry.example:5000',
    isFit: (url) => /^https?:\/\/[A-Za-z0-9.-]+(?::\d{1,5})?$/u.test(url) && URL.canParse(url),
    description:
      'registries, such as `https://registry.example:5000`: builds of images reach them wherever they are, also on private and loopback addresses, and with `http://` without TLS. All others must have public addresses. Token servers and places that such a registry redirects to are named here, too',
  }),
  IMAGE_BUILDS: integer({
    default: 2,
    minimum: 0,
    maximum: 64,
    description:
      'builds of images at the same time. 0: callers cannot build here, neither with `POST /api/images` nor with the `base_image` of a sandbox, and get what the host or its region has. Needs sandboxes',
  }),
  IMAGE_BYTES_MAX: integer({
    unit: 'bytes',
    default: 10 * GiB,
    minimum: 16 * MiB,
    maximum: 30 * GiB,
    description: 'what one image may have, compressed and unpacked',
  }),
  IMAGE_UNUSED_DAYS: integer({
    unit: 'days',
    default: 30,
    minimum: 1,
    maximum: 3650,
    description:
      'after so many days without use an image is removed, earlier when space is short ([images.md](images.md#eviction))',
  }),
};

const execSettings = {
  EXEC_IMAGE: Type.Optional(
    text({
      form: 'image reference',
      expected: 'an image reference such as debian:13',
      isFit: isImageReference,
      fallback: 'the default image',
      description:
        'public image, by tag or digest, for the containers that commands on disks run in. Brought to the host when the agent starts, which waits for it; a tag is looked up each time, and when the registry does not answer the image of the last start is used. The agent does not start without it, or when bash does not run in it. ENV of the image holds for commands; they run as root in `/mnt/service` whatever WORKDIR and USER say',
    }),
  ),
  MOUNT_ALIASES: list({
    default: ['/mnt/archil'],
    form: 'paths',
    description: 'links to `/mnt/service` in containers; empty: none',
  }),
  EXEC_SLOTS: Type.Optional(
    integer({
      minimum: 1,
      maximum: 1024,
      fallback: '4 × processors',
      description: 'commands at the same time, and containers kept ready at most',
    }),
  ),
  EXEC_SLOTS_PER_ACCOUNT: Type.Optional(
    integer({
      minimum: 1,
      maximum: 1024,
      fallback: 'three quarters of `EXEC_SLOTS`, at least one less',
      description:
        'commands of one account at the same time while no other account has any. What it leaves is what other accounts find free at once; `EXEC_SLOTS` or more: a lone account may fill the host',
    }),
  ),
  EXEC_MEMORY_BYTES: integer({
    unit: 'bytes',
    default: GiB,
    minimum: 32 * MiB,
    maximum: TiB,
    description: 'per command, swap included',
  }),
  EXEC_PROCESSES: integer({
    default: 512,
    minimum: 8,
    maximum: 100_000,
    description: 'per command; a search has at most half as many workers',
  }),
  EXEC_CPUS: Type.Optional(
    integer({
      minimum: 1,
      maximum: 1024,
      fallback: 'processors',
      description: 'per command; also the workers of one search, at most',
    }),
  ),
  EXEC_SCRATCH_BYTES: integer({
    unit: 'bytes',
    default: 512 * MiB,
    minimum: MiB,
    maximum: TiB,
    description: 'per command, everything written outside the disk; also the size of `/dev/shm`',
  }),
  EXEC_USER_NAMESPACES: Type.Enum(['auto', 'on', 'off'], {
    default: 'auto',
    description:
      "`on`: the agent does not start where containers cannot have users of their own; `off`: they have root's; `auto`: the agent tries",
  }),
  EXEC_UID_BASE: integer({
    default: 2 ** 31,
    minimum: 2 ** 31, // Above those of machines, which end below it.
    maximum:
      2 ** 32 - 1 - LIMITS.idsPerContainer * (LIMITS.userRanges + LIMITS.containerSandboxesMax),
    description:
      'from here on 134,217,728 users and groups of containers, 65,536 each, and after them 536,870,912 of sandboxes that are containers; must belong to nobody else, and be the same on all hosts of a region',
  }),
  SECCOMP_PROFILE: absolutePath({
    default: '/usr/share/containers/seccomp.json',
    description: "profile that the container's own is made from",
  }),
};

const ingressSettings = {
  INGRESS_PORT: Type.Optional(
    port({
      fallback: 'none',
      setUp: '8712',
      description:
        'where this host serves the ports of sandboxes, its own and those of other hosts ([ingress](ingress.md)). Without it the host serves none at an address of its own, but passes on what other hosts ask of its sandboxes',
    }),
  ),
  INGRESS_HOST: Type.Optional(
    text({ form: 'address', fallback: '`AGENT_HOST`', description: 'address for `INGRESS_PORT`' }),
  ),
  INGRESS_ZONE: text({
    pattern: zonePattern,
    form: 'domain',
    default: ZONE_DEFAULT,
    description: 'as for control: both must be the same',
  }),
  INGRESS_TLS_CERT: Type.Optional(
    absolutePath({
      fallback: 'none: no TLS',
      description:
        'certificate chain (PEM) of `INGRESS_PORT`, which then speaks TLS alone ([TLS](operations.md#tls))',
    }),
  ),
  INGRESS_TLS_KEY: Type.Optional(
    absolutePath({ fallback: 'none', description: 'key (PEM) of `INGRESS_TLS_CERT`' }),
  ),
  INGRESS_ANSWER_MS: integer({
    unit: 'ms',
    default: LIMITS.ingressAnswerMs,
    minimum: 100,
    maximum: DAY_MS,
    description:
      'how long a sandbox may take to begin its answer, or to read on, until the caller gets 504',
  }),
  INGRESS_THREADS: Type.Optional(
    integer({
      minimum: 1,
      maximum: 64,
      fallback: `processors, at most ${LIMITS.ingressThreadsDefaultMax}`,
      description: 'threads that serve `INGRESS_PORT`',
    }),
  ),
};

export const AgentSettings = Type.Object({
  ...placeSettings,
  ...imageSettings,
  ...execSettings,
  ...sandboxSettings,
  ...ingressSettings,
});
