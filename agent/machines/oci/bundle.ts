import { MACHINE_LIMITS } from '../limits.ts';
import type { ExecLimits } from './exec-limits.ts';
import type { IdMapping } from './container-users.ts';
import type { SeccompProfile } from './seccomp.ts';

/** Where commands see their disks (docs/api.md, Exec). */
export const MOUNT_ROOT = '/mnt/service';
/** Where containers see init, the search program, and rg. */
export const TOOLS = '/.berth';

/**
 * The capabilities of root inside: enough to install files and change their owners, none that
 * reaches the host's devices, network, or other processes.
 */
export const CAPABILITIES = [
  'CAP_CHOWN',
  'CAP_DAC_OVERRIDE',
  'CAP_FOWNER',
  'CAP_FSETID',
  'CAP_KILL',
  'CAP_NET_BIND_SERVICE',
  'CAP_SETGID',
  'CAP_SETPCAP',
  'CAP_SETUID',
  'CAP_SYS_CHROOT',
];

const ENVIRONMENT = {
  PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
  HOME: '/root',
  USER: 'root',
  LANG: 'C.UTF-8',
} as const;

const READONLY_PATHS = ['/proc/sys', TOOLS];

// A container without users of its own shares the host root's limits, so part of them is left free.
const SHARED_LIMITS = [
  { type: 'RLIMIT_SIGPENDING', soft: 1024, hard: 1024 },
  { type: 'RLIMIT_MSGQUEUE', soft: 65_536, hard: 65_536 },
];

const CPU_PERIOD_US = 100_000;

export interface BundleSpec {
  readonly rootPath: string;
  /** Host directory seen at `/dev`. */
  readonly devicesPath: string;
  /** Host directory seen at {@link MOUNT_ROOT}; what is mounted on it later appears there. */
  readonly mountPath: string;
  readonly cgroupPath: string;
  /** The cgroup controllers that the host offers; limits that need another one are left out. */
  readonly controllers: ReadonlySet<string>;
  readonly limits: ExecLimits;
  readonly seccomp: SeccompProfile;
  /** Paths of the kernel's file systems; see hidden-paths.ts. */
  readonly hiddenPaths: readonly string[];
  /** Undefined: root inside is root of the host. */
  readonly users: BundleUsers | undefined;
  /** The variables of the image's ENV; they override the usual ones of containers. */
  readonly environment?: Readonly<Record<string, string>>;
}

/**
 * When the host runs out of memory, commands end before its services. Not inherited from the agent,
 * which its unit protects.
 */
const OOM_SCORE = 500;

/** The user namespace that a container joins. */
interface BundleUsers {
  readonly namespacePath: string;
  readonly mappings: readonly IdMapping[];
}

/**
 * Processes and devices, the same in every container.
 * @param devicesPath made by the agent, since users of a container cannot make devices, and runc
 *   would bind the host's own
 */
export const processAndDeviceMounts = (devicesPath: string) => [
  { destination: '/proc', type: 'proc', source: 'proc', options: ['nosuid', 'noexec', 'nodev'] },
  {
    destination: '/dev',
    type: 'bind',
    source: devicesPath,
    options: ['bind', 'nosuid', 'noexec'],
  },
  {
    destination: '/dev/pts',
    type: 'devpts',
    source: 'devpts',
    options: [
      ...['nosuid', 'noexec', 'newinstance', 'ptmxmode=0666', 'mode=0620', 'gid=5'],
      `max=${MACHINE_LIMITS.terminalsPerContainerMax}`,
    ],
  },
];

export const SYSTEM_MOUNT = {
  destination: '/sys',
  type: 'sysfs',
  source: 'sysfs',
  options: ['nosuid', 'noexec', 'nodev', 'ro'],
};

const mounts = (spec: BundleSpec) => [
  ...processAndDeviceMounts(spec.devicesPath),
  {
    destination: '/dev/shm',
    type: 'tmpfs',
    source: 'shm',
    options: ['nosuid', 'noexec', 'nodev', 'mode=1777', `size=${spec.limits.scratchBytes}`],
  },
  SYSTEM_MOUNT,
  {
    destination: MOUNT_ROOT,
    type: 'bind',
    source: spec.mountPath,
    options: ['rbind', 'rslave', 'nosuid', 'nodev'],
  },
];

function resources({ controllers, limits }: BundleSpec): Record<string, unknown> {
  return {
    devices: [{ allow: false, access: 'rwm' }],
    ...(controllers.has('memory')
      ? // Swap counts too: limit and memory+swap are the same.
        { memory: { limit: limits.memoryBytes, swap: limits.memoryBytes } }
      : {}),
    ...(controllers.has('pids') ? { pids: { limit: limits.processes } } : {}),
    ...(controllers.has('cpu')
      ? { cpu: { quota: limits.cpus * CPU_PERIOD_US, period: CPU_PERIOD_US } }
      : {}),
  };
}

/** Every namespace is new except the user namespace, which exists already. */
function namespacesOf(users: BundleUsers | undefined): Record<string, unknown> {
  const namespaces: { type: string; path?: string }[] = [
    ...['pid', 'mount', 'network', 'ipc', 'uts', 'cgroup'].map((type) => ({ type })),
  ];
  if (users === undefined) return { namespaces };
  const { namespacePath, mappings } = users;
  return {
    namespaces: [...namespaces, { type: 'user', path: namespacePath }],
    uidMappings: mappings,
    gidMappings: mappings,
  };
}

/**
 * The config.json of one exec container (OCI runtime specification 1.0). Pure: the benchmark runs
 * bare runc with exactly this.
 */
export function execBundle(spec: BundleSpec): Record<string, unknown> {
  const sets = ['bounding', 'effective', 'permitted'];
  return {
    ociVersion: '1.0.2',
    hostname: 'exec',
    root: { path: spec.rootPath },
    process: {
      terminal: false,
      user: { uid: 0, gid: 0, umask: 0o022 },
      args: [`${TOOLS}/init`, MOUNT_ROOT],
      env: Object.entries({ ...ENVIRONMENT, ...spec.environment }).map((pair) => pair.join('=')),
      cwd: '/',
      capabilities: Object.fromEntries(sets.map((set) => [set, CAPABILITIES])),
      noNewPrivileges: true,
      oomScoreAdj: OOM_SCORE,
      ...(spec.users === undefined ? { rlimits: SHARED_LIMITS } : {}),
    },
    mounts: mounts(spec),
    linux: {
      ...namespacesOf(spec.users),
      // Mounts come from the host into the container, never the other way.
      rootfsPropagation: 'rslave',
      cgroupsPath: spec.cgroupPath,
      resources: resources(spec),
      seccomp: spec.seccomp,
      maskedPaths: spec.hiddenPaths,
      readonlyPaths: READONLY_PATHS,
    },
  };
}
