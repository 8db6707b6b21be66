import { existsSync } from 'node:fs';
import test from 'ava';
import { type BundleSpec, execBundle } from '../../../../agent/machines/oci/bundle.ts';
import { readHiddenPaths } from '../../../../agent/machines/oci/hidden-paths.ts';
import { MiB } from '../../../../shared/units.ts';

const spec: BundleSpec = {
  rootPath: '/scratch/root',
  devicesPath: '/scratch/dev',
  mountPath: '/scratch/mounts',
  cgroupPath: '/berth/host/container',
  controllers: new Set(['memory', 'pids', 'cpu']),
  limits: { memoryBytes: 64 * MiB, processes: 10, cpus: 2, scratchBytes: 8 * MiB },
  seccomp: {
    defaultAction: 'SCMP_ACT_ERRNO',
    defaultErrnoRet: 38,
    architectures: [],
    syscalls: [],
  },
  hiddenPaths: ['/proc/kcore'],
  users: undefined,
};

interface Bundle {
  process: {
    noNewPrivileges: boolean;
    oomScoreAdj: number;
    capabilities: Record<string, string[]>;
    env: string[];
    rlimits?: { type: string }[];
  };
  mounts: { destination: string; type: string; source: string; options: string[] }[];
  linux: {
    namespaces: { type: string; path?: string }[];
    uidMappings?: unknown;
    gidMappings?: unknown;
    resources: Record<string, unknown>;
    cgroupsPath: string;
    maskedPaths: string[];
    readonlyPaths: string[];
    seccomp: unknown;
  };
}

/** The bundle in runc's form. */
const bundleOf = (change: Partial<BundleSpec> = {}): Bundle =>
  JSON.parse(JSON.stringify(execBundle({ ...spec, ...change }))) as Bundle;

const limitsOf = ({ process }: Bundle): string[] => process.rlimits?.map(({ type }) => type) ?? [];

test('limits are set where the host has the controller', (t) => {
  const { resources } = bundleOf().linux;
  t.deepEqual(resources['memory'], { limit: 64 * MiB, swap: 64 * MiB });
  t.deepEqual(resources['pids'], { limit: 10 });
  t.deepEqual(resources['cpu'], { quota: 200_000, period: 100_000 });
});

for (const [controllers, limited] of [
  [
    ['cpuset', 'cpu', 'io', 'memory', 'pids'],
    ['cpu', 'memory', 'pids'],
  ], // cgroup v2
  [
    ['cpu', 'cpuacct', 'blkio', 'memory', 'pids', 'systemd', 'unified'],
    ['cpu', 'memory', 'pids'],
  ], // v1
  [['pids'], ['pids']],
  [[], []],
] as const) {
  test(`controllers ${controllers.join(' ') || 'none'}: limits on ${limited.join(' ') || 'nothing'}`, (t) => {
    const { resources } = bundleOf({ controllers: new Set(controllers) }).linux;
    t.deepEqual(
      Object.keys(resources).toSorted((a, b) => (a < b ? -1 : 1)),
      [...limited, 'devices'].toSorted((a, b) => (a < b ? -1 : 1)),
    );
    t.deepEqual(resources['devices'], [{ allow: false, access: 'rwm' }]);
  });
}

test('namespaces are all new ones', (t) => {
  const { namespaces } = bundleOf().linux;
  t.deepEqual(
    namespaces.map(({ type }) => type).toSorted((a, b) => (a < b ? -1 : 1)),
    ['cgroup', 'ipc', 'mount', 'network', 'pid', 'uts'],
  );
  t.true(namespaces.every(({ path }) => path === undefined));
});

test('with users of its own a container joins their namespace, else it has less of root’s', (t) => {
  const mappings = [{ containerID: 0, hostID: 5_000_000, size: 1000 }];
  const users = { namespacePath: '/proc/1/fd/2', mappings };
  const own = bundleOf({ users });
  const { linux } = own;
  t.deepEqual(linux.namespaces.at(-1), { type: 'user', path: '/proc/1/fd/2' });
  t.deepEqual([linux.uidMappings, linux.gidMappings], [mappings, mappings]);
  const shared = bundleOf();
  t.is(shared.linux.uidMappings, undefined);
  t.deepEqual(limitsOf(own), []);
  t.deepEqual(limitsOf(shared), ['RLIMIT_SIGPENDING', 'RLIMIT_MSGQUEUE']);
});

test('no privilege can be gained', (t) => {
  const { capabilities, noNewPrivileges } = bundleOf().process;
  t.true(noNewPrivileges);
  t.deepEqual(
    Object.keys(capabilities).toSorted((a, b) => (a < b ? -1 : 1)),
    ['bounding', 'effective', 'permitted'],
  );
  const dangerous =
    /SYS_ADMIN|SYS_PTRACE|SYS_MODULE|SYS_RAWIO|DAC_READ_SEARCH|NET_ADMIN|NET_RAW|MKNOD|SYS_BOOT|SYS_RESOURCE|SYS_TIME|BPF|PERFMON|SETFCAP|SYSLOG|AUDIT/u;
  t.notRegex(Object.values(capabilities).flat().join(' '), dangerous);
});

test('a command is ended before the services of a host that runs out of memory', (t) => {
  t.true(bundleOf().process.oomScoreAdj > 0);
});

test('nothing mounted allows set-user-id or, but for /dev, devices', (t) => {
  for (const { destination, options } of bundleOf().mounts) {
    t.true(options.includes('nosuid'), destination);
    if (destination.startsWith('/dev') && destination !== '/dev/shm') continue;
    t.true(options.includes('nodev'), destination);
  }
});

test('only its devices and the place of the disks come from the host', (t) => {
  const { mounts } = bundleOf();
  const bound = mounts.filter(({ type }) => type === 'bind');
  t.deepEqual(
    bound.map(({ source, destination }) => [source, destination]),
    [
      ['/scratch/dev', '/dev'],
      ['/scratch/mounts', '/mnt/service'],
    ],
  );
  // A mount made inside must never appear on the host.
  t.false(mounts.some(({ options }) => options.some((option) => /shared/u.test(option))));
});

test('what is hidden is masked, and the kernel’s settings are read-only', (t) => {
  const { maskedPaths, readonlyPaths } = bundleOf().linux;
  t.deepEqual(maskedPaths, ['/proc/kcore']);
  t.deepEqual(readonlyPaths, ['/proc/sys', '/.berth']);
  t.true(bundleOf().mounts.some(({ type, options }) => type === 'sysfs' && options.includes('ro')));
});

test('of the kernel’s file systems all is hidden but what programs look at', async (t) => {
  const hidden = await readHiddenPaths();
  const masked = ['/proc/kcore', '/proc/keys', '/proc/sysrq-trigger', '/proc/fs', '/proc/locks'];
  for (const path of [...masked, '/sys/fs', '/sys/block', '/sys/kernel', '/sys/devices/virtual']) {
    t.is(hidden.includes(path), existsSync(path), path);
  }
  t.deepEqual(
    hidden.filter((path) =>
      /^\/proc\/(\d+|self|sys|meminfo)$|^\/sys\/devices(\/system)?$/u.test(path),
    ),
    [],
  );
});

test('the environment says nothing of the host', (t) => {
  process.env['BERTH_SECRET_OF_HOST'] = 'x';
  t.deepEqual(
    bundleOf().process.env.map((entry) => entry.split('=')[0]),
    ['PATH', 'HOME', 'USER', 'LANG'],
  );
  delete process.env['BERTH_SECRET_OF_HOST'];
});
