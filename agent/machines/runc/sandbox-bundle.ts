import { CAPABILITIES, processAndDeviceMounts, SYSTEM_MOUNT } from '../oci/bundle.ts';
import type { IdMapping } from '../oci/container-users.ts';
import type { SeccompProfile } from '../oci/seccomp.ts';

/** Where a container sees its guest agent. */
const GUEST = '/.berth/guest';
/** The descriptor of the socket at which the guest agent listens (container-shim.c). */
const LISTENER_FD = 3;
/** The guest agent's kept output may take this part of the memory, as in a virtual machine. */
const RINGS_SHARE = 1 / 4;
/** Each of the file systems in memory. What lies in them counts as memory. */
const TEMPORARY_SHARE = 1 / 4;

export interface SandboxBundleSpec {
  readonly hostname: string;
  readonly memoryBytes: number;
  /** The guest agent on the host. */
  readonly guestPath: string;
  /** Host directory seen at `/dev`. */
  readonly devicesPath: string;
  readonly cgroupPath: string;
  /** The user namespace that the container joins. */
  readonly namespacePath: string;
  readonly mappings: readonly IdMapping[];
  readonly seccomp: SeccompProfile;
  readonly hiddenPaths: readonly string[];
}

const temporary = (destination: string, mode: string, bytes: number) => ({
  destination,
  type: 'tmpfs',
  source: 'tmpfs',
  options: ['nosuid', 'nodev', `mode=${mode}`, `size=${bytes}`],
});

function mounts({ memoryBytes, devicesPath, guestPath }: SandboxBundleSpec) {
  const temporaryBytes = Math.floor(memoryBytes * TEMPORARY_SHARE);
  return [
    ...processAndDeviceMounts(devicesPath),
    temporary('/dev/shm', '1777', temporaryBytes),
    // New at each start, as in a virtual machine.
    temporary('/run', '0755', temporaryBytes),
    SYSTEM_MOUNT,
    {
      destination: GUEST,
      type: 'bind',
      source: guestPath,
      options: ['bind', 'ro', 'nosuid', 'nodev'],
    },
  ];
}

/**
 * The config.json of a sandbox's container (OCI runtime specification 1.0). Its limits are set by
 * the agent, which makes the control group beforehand. Pure.
 */
export function sandboxBundle(spec: SandboxBundleSpec): Record<string, unknown> {
  const { hostname, memoryBytes, cgroupPath, namespacePath, mappings } = spec;
  const sets = ['bounding', 'effective', 'permitted'];
  const rings = Math.floor(memoryBytes * RINGS_SHARE);
  const made = ['pid', 'mount', 'network', 'ipc', 'uts', 'cgroup'].map((type) => ({ type }));
  return {
    ociVersion: '1.0.2',
    hostname,
    root: { path: 'root' },
    process: {
      terminal: false,
      user: { uid: 0, gid: 0, umask: 0o022 },
      args: [GUEST, '--listen', String(LISTENER_FD), '--rings', String(rings)],
      env: [],
      cwd: '/',
      capabilities: Object.fromEntries(sets.map((set) => [set, CAPABILITIES])),
      noNewPrivileges: true,
      // Processes of the guest end before it (guest/spawn.c), and none of them is protected as the
      // host's agent is by its unit.
      oomScoreAdj: 0,
    },
    mounts: mounts(spec),
    linux: {
      namespaces: [...made, { type: 'user', path: namespacePath }],
      uidMappings: mappings,
      gidMappings: mappings,
      rootfsPropagation: 'private',
      cgroupsPath: cgroupPath,
      resources: { devices: [{ allow: false, access: 'rwm' }] },
      seccomp: spec.seccomp,
      maskedPaths: spec.hiddenPaths,
      readonlyPaths: ['/proc/sys', '/.berth'],
    },
  };
}
