import { access, constants } from 'node:fs/promises';
import { availableParallelism, totalmem } from 'node:os';
import Type, { type Static } from 'typebox';
import {
  certificatePaths,
  type ClusterConfig,
  readClusterConfig,
  readInternalUrl,
  togetherOrNone,
} from '../shared/settings/cluster-config.ts';
import { type HttpSettings, readHttpSettings } from '../shared/settings/http-settings.ts';
import { formatImageReference, parseImageReference } from '../shared/image-reference.ts';
import { EDGE_LIMITS } from './edge/limits.ts';
import { LIMITS } from '../shared/limits.ts';
import { AgentSettings } from '../shared/settings/agent-settings.ts';
import { CommonSettings } from '../shared/settings/cluster-settings.ts';
import {
  readSettings,
  refuseProblems,
  type SettingTexts,
} from '../shared/settings/read-settings.ts';
import { readTracing, type TracingConfig } from '../shared/settings/tracing-settings.ts';
import { type CertificatePaths, checkCertificates } from '../shared/tls/certificates.ts';
import { DAY_MS, MiB } from '../shared/units.ts';
import type { UserRangeSettings } from './commands/open-user-ranges.ts';
import type { ExecSettings } from './commands/open-execs.ts';
import type { ImageSettings } from './images/open-images.ts';
import { parseRegistry } from './images/registry-rules.ts';
import { isNetwork } from './network/slots/addresses.ts';
import type { ContainerSettings, MicrovmSettings } from './machines/settings.ts';
import type { SandboxSettings } from './sandboxes/holds/settings.ts';

export interface AgentConfig extends ExecSettings {
  /** Undefined: traces are off. */
  readonly tracing: TracingConfig | undefined;
  readonly cluster: ClusterConfig;
  readonly http: HttpSettings;
  /** Certificate of the public port; undefined: it is not encrypted. */
  readonly tls: CertificatePaths | undefined;
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
  /** Program that shuts a host out of the storage; undefined: none can be. */
  readonly storageFenceCommand: string | undefined;
  /** Free bytes of storage and data directory below which new work is refused. */
  readonly storageReserveBytes: number;
  /** How long the answer of a command waits for the bucket behind its disk. */
  readonly bucketSettleMs: number;
  /** Where applications of Azure get their tokens: an origin without a slash at its end. */
  readonly azureAuthority: string;
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
  readonly tls: CertificatePaths | undefined;
  /** How long a guest may take to begin its answer. */
  readonly answerMs: number;
  readonly threads: number;
}

/** Share of EXEC_SLOTS that stays free for other accounts while one account uses the rest. */
const OTHERS_SHARE = 1 / 4;
const VCPUS_PER_PROCESSOR = 16;
const MEMORY_SHARE = 0.8;
const EXEC_IDS = LIMITS.userRanges * LIMITS.idsPerContainer;
const SANDBOX_IDS = LIMITS.containerSandboxesMax * LIMITS.idsPerContainer;

const Settings = Type.Object({ ...CommonSettings.properties, ...AgentSettings.properties });
type Values = Static<typeof Settings>;

/** Settings that only together make sense. */
const PAIRS = [
  ['GUEST_DIR', 'DEFAULT_ROOT_DISK'],
  ['AGENT_TLS_CERT', 'AGENT_TLS_KEY'],
  ['INGRESS_TLS_CERT', 'INGRESS_TLS_KEY'],
] as const;

/** Finds problems that no setting shows by itself. */
function problemsOf(settings: Values): string[] {
  const unpaired = PAIRS.flatMap((pair) => togetherOrNone(settings, pair));
  if (settings.SANDBOX_DIR !== undefined && settings.SANDBOX_RUNTIME === 'container') {
    unpaired.push('SANDBOX_DIR must not be set with SANDBOX_RUNTIME=container');
  }
  const areNetworks = settings.SANDBOX_REACHABLE_NETWORKS.every(isNetwork);
  return areNetworks
    ? unpaired
    : [...unpaired, 'SANDBOX_REACHABLE_NETWORKS must be networks such as 10.1.0.0/16'];
}

function readMicrovmSettings(settings: Values): MicrovmSettings | undefined {
  const { GUEST_DIR: guestDir, DEFAULT_ROOT_DISK: rootDisk } = settings;
  if (guestDir === undefined || rootDisk === undefined) return undefined;
  const hasTemplates = settings.SANDBOX_TEMPLATES === 'on';
  const { SANDBOX_ACCELERATOR: accelerator } = settings;
  return { kind: 'microvm', guestDir, rootDisk, accelerator, hasTemplates };
}

const readContainerSettings = (settings: Values): ContainerSettings => ({
  kind: 'container',
  imageDir: settings.DEFAULT_IMAGE_DIR,
  diskBytes: settings.SANDBOX_DISK_BYTES,
  idBase: sandboxIdBase(settings),
});

function readSandboxSettings(settings: Values): SandboxSettings | undefined {
  const isContainer = settings.SANDBOX_RUNTIME === 'container';
  const runtime = isContainer ? readContainerSettings(settings) : readMicrovmSettings(settings);
  if (runtime === undefined) return undefined;
  const network = {
    resolvers: settings.SANDBOX_DNS,
    reachable: settings.SANDBOX_REACHABLE_NETWORKS.filter(isNetwork),
  };
  const keepBasesMs = settings.IMAGE_UNUSED_DAYS * DAY_MS;
  const hostLostMs = settings.SANDBOX_HOST_LOST_MS;
  const memoryMib = Math.floor(Math.floor(totalmem() / MiB) * MEMORY_SHARE);
  return {
    runtime,
    shared:
      settings.SANDBOX_DIR === undefined
        ? undefined
        : { directory: settings.SANDBOX_DIR, hostLostMs, keepBasesMs },
    network: settings.SANDBOX_NETWORK === 'on' ? network : undefined,
    trustedCertificates: settings.SANDBOX_TRUSTED_CA,
    uidBase: settings.SANDBOX_UID_BASE,
    bootTimeoutMs: settings.SANDBOX_BOOT_TIMEOUT_MS,
    memoryMib: settings.SANDBOX_MEMORY_MIB ?? memoryMib,
    vcpus: settings.SANDBOX_VCPUS ?? availableParallelism() * VCPUS_PER_PROCESSOR,
    memoryReserveMib: settings.SANDBOX_MEMORY_RESERVE_MIB,
    slotsMax: settings.SANDBOX_SLOTS,
    slotsReady: settings.SANDBOX_SLOTS_READY,
    prewarmedMax: settings.SANDBOX_PREWARMED,
  };
}

function readImageSettings(
  settings: Values,
  sandboxes: SandboxSettings | undefined,
): ImageSettings {
  const microvm = sandboxes?.runtime.kind === 'microvm' ? sandboxes.runtime : undefined;
  return {
    defaultImageDir: settings.DEFAULT_IMAGE_DIR,
    defaultRootDisk: microvm?.rootDisk,
    guestDir: microvm?.guestDir,
    buildsMax: sandboxes === undefined ? 0 : settings.IMAGE_BUILDS,
    bytesMax: settings.IMAGE_BYTES_MAX,
    registries: settings.IMAGE_REGISTRIES.flatMap((text) => parseRegistry(text) ?? []),
    keepMs: settings.IMAGE_UNUSED_DAYS * DAY_MS,
    // Beside the user of the egress proxy, from the end of those for machines.
    uid: settings.SANDBOX_UID_BASE + LIMITS.machineUsersMax - 2,
  };
}

function readIngressSettings(settings: Values): IngressSettings | undefined {
  const { INGRESS_PORT: port } = settings;
  if (port === undefined) return undefined;
  const threads = Math.min(availableParallelism(), LIMITS.ingressThreadsDefaultMax);
  return {
    zone: settings.INGRESS_ZONE,
    host: settings.INGRESS_HOST ?? settings.AGENT_HOST,
    port,
    tls: certificatePaths(settings.INGRESS_TLS_CERT, settings.INGRESS_TLS_KEY),
    answerMs: settings.INGRESS_ANSWER_MS,
    threads: settings.INGRESS_THREADS ?? threads,
  };
}

/** The ids of sandboxes that are containers follow those of containers for commands. */
const sandboxIdBase = ({ EXEC_UID_BASE }: Values): number => EXEC_UID_BASE + EXEC_IDS;

function readUserRanges(settings: Values): UserRangeSettings {
  const { EXEC_USER_NAMESPACES: mode, EXEC_UID_BASE: baseId } = settings;
  // Also where no sandboxes run: a disk must look the same on every host. One more uid is for
  // probing.
  const reserved = [
    { first: settings.SANDBOX_UID_BASE - 1, count: LIMITS.machineUsersMax + 1 },
    { first: sandboxIdBase(settings), count: SANDBOX_IDS },
  ];
  return { mode, baseId, reserved };
}

function readExecSettings(settings: Values): Omit<ExecSettings, 'defaultImageDir'> {
  const cores = availableParallelism();
  const execSlots = settings.EXEC_SLOTS ?? 4 * cores;
  const others = Math.max(1, Math.floor(execSlots * OTHERS_SHARE));
  const { EXEC_IMAGE: image } = settings;
  return {
    execSlots,
    execSlotsPerAccount: settings.EXEC_SLOTS_PER_ACCOUNT ?? Math.max(1, execSlots - others),
    execImage: image === undefined ? undefined : formatImageReference(parseImageReference(image)),
    mountAliases: settings.MOUNT_ALIASES,
    execLimits: {
      memoryBytes: settings.EXEC_MEMORY_BYTES,
      processes: settings.EXEC_PROCESSES,
      cpus: settings.EXEC_CPUS ?? cores,
      scratchBytes: settings.EXEC_SCRATCH_BYTES,
    },
    userRanges: readUserRanges(settings),
  };
}

/** @throws ConfigurationError naming every setting that is missing or wrong */
export function readAgentConfig(texts: SettingTexts): AgentConfig {
  const settings = readSettings(Settings, texts);
  refuseProblems(problemsOf(settings));
  const { AGENT_HOST: host, AGENT_ADMIN_PORT: adminPort } = settings;
  const sandboxes = readSandboxSettings(settings);
  const cluster = readClusterConfig(settings);
  return {
    cluster,
    tracing: readTracing(settings),
    tls: certificatePaths(settings.AGENT_TLS_CERT, settings.AGENT_TLS_KEY),
    http: readHttpSettings(settings, {
      objectRequests: EDGE_LIMITS.objectRequestsPerHostMax,
      downloads: EDGE_LIMITS.downloadsPerHostMax,
    }),
    host,
    port: settings.AGENT_PORT,
    adminPort,
    publicUrl: settings.AGENT_PUBLIC_URL,
    internalUrl: readInternalUrl(cluster, {
      name: 'AGENT_INTERNAL_URL',
      url: settings.AGENT_INTERNAL_URL,
      address: `${host}:${adminPort}`,
    }),
    dataDir: settings.AGENT_DATA_DIR,
    storageDir: settings.STORAGE_DIR,
    defaultImageDir: settings.DEFAULT_IMAGE_DIR,
    diskSizeBytes: settings.DISK_SIZE_BYTES,
    storageFenceCommand: settings.STORAGE_FENCE_COMMAND,
    storageReserveBytes: settings.STORAGE_RESERVE_BYTES,
    bucketSettleMs: settings.BUCKET_SETTLE_MS,
    azureAuthority: settings.AZURE_AUTHORITY_HOST,
    ...readExecSettings(settings),
    cgroupParent: settings.AGENT_CGROUP,
    seccompProfile: settings.SECCOMP_PROFILE,
    ingress: readIngressSettings(settings),
    images: readImageSettings(settings, sandboxes),
    sandboxes,
  };
}

async function checkProgram(path: string): Promise<void> {
  await access(path, constants.X_OK).catch((cause: unknown) => {
    throw new Error(`STORAGE_FENCE_COMMAND: ${path} is not an executable file`, { cause });
  });
}

/** Looks at the files that the configuration names. @throws Error when one does not fit */
export async function checkAgentConfig(config: AgentConfig): Promise<void> {
  const { tls, cluster, ingress, storageFenceCommand } = config;
  if (storageFenceCommand !== undefined) await checkProgram(storageFenceCommand);
  await checkCertificates([tls, cluster.tls, ingress?.tls]);
}
