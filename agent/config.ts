import { isIPv4 } from 'node:net';
import { availableParallelism, totalmem } from 'node:os';
import { type ClusterConfig, ConfigReader, readClusterConfig } from '../shared/config.ts';
import { type HttpSettings, readHttpSettings } from '../shared/http/http-settings.ts';
import { regionPattern } from '../shared/ids.ts';
import { LIMITS } from '../shared/limits.ts';
import { formatImageReference, parseImageReference } from '../shared/image-reference.ts';
import { publicUrlPattern } from '../shared/links/stream-protocol.ts';
import type { UserRangeSettings } from './containers/open-user-ranges.ts';
import type { ExecSettings } from './execs/open-execs.ts';
import type { ImageSettings } from './images/open-images.ts';
import { parseRegistry } from './images/registry-rules.ts';
import { isNetwork } from './network/addresses.ts';
import type { NetworkSettings } from './network/router.ts';
import type { ContainerSettings, MicrovmSettings, SandboxSettings } from './sandboxes/settings.ts';
import { sandboxRuntimes } from '../shared/links/stream-protocol.ts';
import { ZONE_DEFAULT, zonePattern } from '../shared/ingress-hostname.ts';
import { DAY_MS, GiB, HOUR_MS, MiB } from '../shared/units.ts';

export interface AgentConfig extends ExecSettings {
  readonly cluster: ClusterConfig;
  readonly http: HttpSettings;
  readonly host: string;
  readonly port: number;
  readonly adminPort: number;
  readonly publicUrl: string;
  /** How control nodes reach this host's data endpoint, on the admin port. */
  readonly internalUrl: string;
  /** Journal, mounts and run state of this host. */
  readonly dataDir: string;
  /** The region's storage: disk images and their manifests. */
  readonly storageDir: string;
  readonly diskSizeBytes: number;
  /** Free bytes of storage and data directory below which new work is refused. */
  readonly storageReserveBytes: number;
  /** How long the answer of a command waits for the bucket behind its disk. */
  readonly bucketSettleMs: number;
  readonly cgroupParent: string;
  readonly seccompProfile: string;
  readonly images: ImageSettings;
  /** Undefined: this host has none. */
  readonly ingress: IngressSettings | undefined;
  /** Undefined: this host runs none. */
  readonly sandboxes: SandboxSettings | undefined;
}

/** The public server behind the hostnames of ports (docs/ingress.md). */
interface IngressSettings {
  readonly zone: string;
  readonly host: string;
  readonly port: number;
  readonly tls: { readonly certPath: string; readonly keyPath: string } | undefined;
  /** How long a guest may take to begin its answer. */
  readonly answerMs: number;
  readonly threads: number;
}

const absolutePath = '^/[^\\0]*$';

/** Share of EXEC_SLOTS that stays free for other accounts while one account uses the rest. */
const OTHERS_SHARE = 1 / 4;
const VCPUS_PER_PROCESSOR = 16;
const MEMORY_SHARE = 0.8;

const readMachineUidBase = (reader: ConfigReader): number =>
  reader.integer('SANDBOX_UID_BASE', {
    fallback: 600_100_000,
    min: 100_000,
    max: 2 ** 31 - LIMITS.machineUsersMax,
  });

function readMicrovmSettings(reader: ConfigReader): MicrovmSettings | undefined {
  const accelerator = reader.choice('SANDBOX_ACCELERATOR', ['auto', 'kvm', 'tcg']);
  const hasTemplates = reader.choice('SANDBOX_TEMPLATES', ['on', 'off']) === 'on';
  // Both or none: with one of them the other one is missed.
  if (!reader.has('GUEST_DIR') && !reader.has('DEFAULT_ROOT_DISK')) return undefined;
  return {
    kind: 'microvm',
    guestDir: reader.string('GUEST_DIR', { pattern: absolutePath }),
    rootDisk: reader.string('DEFAULT_ROOT_DISK', { pattern: absolutePath }),
    accelerator,
    hasTemplates,
  };
}

function readNetworkSettings(reader: ConfigReader): NetworkSettings | undefined {
  const isOn = reader.choice('SANDBOX_NETWORK', ['on', 'off']) === 'on';
  const resolvers = reader.listOf('SANDBOX_DNS', isIPv4, 'IPv4 addresses');
  const networks = 'networks such as 10.1.0.0/16';
  const reachable = reader.listOf('SANDBOX_REACHABLE_NETWORKS', isNetwork, networks);
  return isOn ? { resolvers, reachable } : undefined;
}

const readContainerSettings = (
  reader: ConfigReader,
  imageDir: string,
  idBase: number,
): ContainerSettings => ({
  kind: 'container',
  imageDir,
  diskBytes: reader.integer('SANDBOX_DISK_BYTES', {
    fallback: 32 * GiB,
    min: 64 * MiB,
    max: 16 * 1024 * GiB,
  }),
  idBase,
});

function readSandboxSettings(
  reader: ConfigReader,
  imageDir: string,
  idBase: number,
): SandboxSettings | undefined {
  const runtime =
    reader.choice('SANDBOX_RUNTIME', [...sandboxRuntimes]) === 'container'
      ? readContainerSettings(reader, imageDir, idBase)
      : readMicrovmSettings(reader);
  if (runtime === undefined) return undefined;
  const hostMib = Math.floor(totalmem() / MiB);
  const processors = availableParallelism();
  return {
    runtime,
    network: readNetworkSettings(reader),
    trustedCertificates: reader.has('SANDBOX_TRUSTED_CA')
      ? reader.string('SANDBOX_TRUSTED_CA', { pattern: absolutePath })
      : undefined,
    uidBase: readMachineUidBase(reader),
    bootTimeoutMs: reader.integer('SANDBOX_BOOT_TIMEOUT_MS', {
      fallback: 120_000,
      min: 1_000,
      max: 3_600_000,
    }),
    memoryMib: reader.integer('SANDBOX_MEMORY_MIB', {
      fallback: Math.floor(hostMib * MEMORY_SHARE),
      min: 1,
      max: 2 ** 31,
    }),
    vcpus: reader.integer('SANDBOX_VCPUS', {
      fallback: processors * VCPUS_PER_PROCESSOR,
      min: 1,
      max: 2 ** 31,
    }),
    memoryReserveMib: reader.integer('SANDBOX_MEMORY_RESERVE_MIB', {
      fallback: 512,
      min: 0,
      max: 2 ** 31,
    }),
    slotsMax: reader.integer('SANDBOX_SLOTS', {
      fallback: 256,
      min: 1,
      max: LIMITS.slotsPerHostMax,
    }),
    slotsReady: reader.integer('SANDBOX_SLOTS_READY', { fallback: 2, min: 0, max: 64 }),
    prewarmedMax: reader.integer('SANDBOX_PREWARMED', { fallback: 4, min: 0, max: 64 }),
  };
}

const isRegistry = (text: string): boolean => parseRegistry(text) !== undefined;

/** Beside the user of the egress proxy, from the end of those for machines. */
const imageUid = (reader: ConfigReader): number =>
  readMachineUidBase(reader) + LIMITS.machineUsersMax - 2;

function readImageSettings(
  reader: ConfigReader,
  defaultImageDir: string,
  sandboxes: SandboxSettings | undefined,
): ImageSettings {
  const runtime = sandboxes?.runtime;
  const expected = 'URLs such as https://registry.example:5000';
  const registries = reader.listOf('IMAGE_REGISTRIES', isRegistry, expected);
  const builds = reader.integer('IMAGE_BUILDS', { fallback: 2, min: 0, max: 64 });
  const days = reader.integer('IMAGE_UNUSED_DAYS', { fallback: 30, min: 1, max: 3650 });
  return {
    defaultImageDir,
    defaultRootDisk: runtime?.kind === 'microvm' ? runtime.rootDisk : undefined,
    guestDir: runtime?.kind === 'microvm' ? runtime.guestDir : undefined,
    buildsMax: sandboxes === undefined ? 0 : builds,
    bytesMax: reader.integer('IMAGE_BYTES_MAX', {
      fallback: 10 * GiB,
      min: 16 * MiB,
      max: 30 * GiB,
    }),
    registries: registries.flatMap((text) => parseRegistry(text) ?? []),
    keepMs: days * DAY_MS,
    uid: imageUid(reader),
  };
}

function readIngressSettings(reader: ConfigReader, host: string): IngressSettings | undefined {
  // Also where it is not used, so that a mistake is found at once.
  const zone = reader.string('INGRESS_ZONE', { fallback: ZONE_DEFAULT, pattern: zonePattern });
  if (!reader.has('INGRESS_PORT')) return undefined;
  const hasTls = reader.has('INGRESS_TLS_CERT') || reader.has('INGRESS_TLS_KEY');
  return {
    zone,
    host: reader.string('INGRESS_HOST', { fallback: host }),
    port: reader.integer('INGRESS_PORT', { min: 1, max: 65_535 }),
    tls: hasTls
      ? {
          certPath: reader.string('INGRESS_TLS_CERT', { pattern: absolutePath }),
          keyPath: reader.string('INGRESS_TLS_KEY', { pattern: absolutePath }),
        }
      : undefined,
    answerMs: reader.integer('INGRESS_ANSWER_MS', {
      fallback: LIMITS.ingressAnswerMs,
      min: 100,
      max: 24 * HOUR_MS,
    }),
    threads: reader.integer('INGRESS_THREADS', {
      fallback: Math.min(availableParallelism(), LIMITS.ingressThreadsDefaultMax),
      min: 1,
      max: 64,
    }),
  };
}

const EXEC_IDS = LIMITS.userRanges * LIMITS.idsPerContainer;
const SANDBOX_IDS = LIMITS.containerSandboxesMax * LIMITS.idsPerContainer;

/** The ids of sandboxes that are containers follow those of containers for commands. */
const sandboxIdBase = (execBase: number): number => execBase + EXEC_IDS;

function readUserRanges(reader: ConfigReader): UserRangeSettings {
  const mode = reader.choice('EXEC_USER_NAMESPACES', ['auto', 'on', 'off']);
  const baseId = reader.integer('EXEC_UID_BASE', {
    fallback: 2 ** 31,
    min: 2 ** 31, // Above those of machines, which end below it.
    max: 2 ** 32 - 1 - EXEC_IDS - SANDBOX_IDS,
  });
  // Also where no sandboxes run: a disk must look the same on every host. One machine more probes.
  const reserved = [
    { first: readMachineUidBase(reader) - 1, count: LIMITS.machineUsersMax + 1 },
    { first: sandboxIdBase(baseId), count: SANDBOX_IDS },
  ];
  return { mode, baseId, reserved };
}

const readExecImage = (reader: ConfigReader): string | undefined =>
  reader.parsed('EXEC_IMAGE', (text) => formatImageReference(parseImageReference(text)));

function readExecSlots(
  reader: ConfigReader,
  cores: number,
): Pick<AgentConfig, 'execSlots' | 'execSlotsPerAccount' | 'bucketSettleMs'> {
  const execSlots = reader.integer('EXEC_SLOTS', { fallback: 4 * cores, min: 1, max: 1024 });
  const others = Math.max(1, Math.floor(execSlots * OTHERS_SHARE));
  const execSlotsPerAccount = reader.integer('EXEC_SLOTS_PER_ACCOUNT', {
    fallback: Math.max(1, execSlots - others),
    min: 1,
    max: 1024,
  });
  const settle = { fallback: 20_000, min: 100, max: HOUR_MS };
  const bucketSettleMs = reader.integer('BUCKET_SETTLE_MS', settle);
  return { execSlots, execSlotsPerAccount, bucketSettleMs };
}

/** @throws Error naming every setting that is missing or wrong */
export function readAgentConfig(environment: NodeJS.ProcessEnv): AgentConfig {
  const reader = new ConfigReader(environment);
  const cores = availableParallelism();
  const host = reader.string('AGENT_HOST', { fallback: '127.0.0.1' });
  const adminPort = reader.integer('AGENT_ADMIN_PORT', { min: 1, max: 65_535 });
  const userRanges = readUserRanges(reader);
  const defaultImageDir = reader.string('DEFAULT_IMAGE_DIR', { pattern: absolutePath });
  const sandboxIds = sandboxIdBase(userRanges.baseId);
  const sandboxes = readSandboxSettings(reader, defaultImageDir, sandboxIds);
  const config: AgentConfig = {
    cluster: readClusterConfig(reader, regionPattern),
    http: readHttpSettings(reader, {
      objectRequests: LIMITS.objectRequestsPerHostMax,
      downloads: LIMITS.downloadsPerHostMax,
    }),
    host,
    port: reader.integer('AGENT_PORT', { min: 1, max: 65_535 }),
    adminPort,
    publicUrl: reader.string('AGENT_PUBLIC_URL', { pattern: publicUrlPattern }),
    internalUrl: reader.string('AGENT_INTERNAL_URL', {
      fallback: `http://${host}:${adminPort}`,
      pattern: '^http://',
    }),
    dataDir: reader.string('AGENT_DATA_DIR', { pattern: absolutePath }),
    storageDir: reader.string('STORAGE_DIR', { pattern: absolutePath }),
    defaultImageDir,
    execImage: readExecImage(reader),
    mountAliases: reader.list('MOUNT_ALIASES', '/mnt/archil'),
    diskSizeBytes: reader.integer('DISK_SIZE_BYTES', {
      fallback: 256 * GiB,
      min: 16 * MiB,
      max: 16 * 1024 * GiB,
    }),
    storageReserveBytes: reader.integer('STORAGE_RESERVE_BYTES', {
      fallback: GiB,
      min: 0,
      max: 1024 * GiB,
    }),
    ...readExecSlots(reader, cores),
    execLimits: {
      memoryBytes: reader.integer('EXEC_MEMORY_BYTES', {
        fallback: GiB,
        min: 32 * MiB,
        max: 1024 * GiB,
      }),
      processes: reader.integer('EXEC_PROCESSES', { fallback: 512, min: 8, max: 100_000 }),
      cpus: reader.integer('EXEC_CPUS', { fallback: cores, min: 1, max: 1024 }),
      scratchBytes: reader.integer('EXEC_SCRATCH_BYTES', {
        fallback: 512 * MiB,
        min: MiB,
        max: 1024 * GiB,
      }),
    },
    userRanges,
    cgroupParent: reader.string('AGENT_CGROUP', {
      fallback: '/berth',
      pattern: '^/[A-Za-z0-9_-]+$',
    }),
    seccompProfile: reader.string('SECCOMP_PROFILE', {
      fallback: '/usr/share/containers/seccomp.json',
      pattern: absolutePath,
    }),
    ingress: readIngressSettings(reader, host),
    images: readImageSettings(reader, defaultImageDir, sandboxes),
    sandboxes,
  };
  reader.finish();
  return config;
}
