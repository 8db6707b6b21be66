import { readFile, writeFile } from 'node:fs/promises';
import test from 'ava';
import { CAPABILITIES } from '../../../../agent/machines/oci/bundle.ts';
import {
  readSeccomp,
  resolveSeccomp,
  type SeccompProfile,
  type SeccompRule,
} from '../../../../agent/machines/oci/seccomp.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

const profilePath = process.env['SECCOMP_PROFILE'] ?? '/usr/share/containers/seccomp.json';

const allowing = ({ syscalls }: SeccompProfile, name: string): SeccompRule[] =>
  syscalls.filter((rule) => rule.action === 'SCMP_ACT_ALLOW' && rule.names.includes(name));

const namesOf = ({ syscalls }: SeccompProfile): string[] => [
  ...new Set(syscalls.flatMap(({ names }) => names)),
];

test('what no rule names is refused', async (t) => {
  const profile = await readSeccomp(profilePath, CAPABILITIES);
  t.is(profile.defaultAction, 'SCMP_ACT_ERRNO');
  t.true(profile.architectures.length > 0);
  const actions = new Set(profile.syscalls.map(({ action }) => action));
  t.deepEqual(
    [...actions].toSorted((a, b) => (a < b ? -1 : 1)),
    ['SCMP_ACT_ALLOW', 'SCMP_ACT_ERRNO'],
  );
});

for (const name of [
  ...['mount', 'umount2', 'mount_setattr', 'move_mount', 'open_tree', 'pivot_root', 'fsopen'],
  ...['fsconfig', 'fsmount', 'fspick', 'unshare', 'setns', 'clone3', 'open_by_handle_at'],
  ...['name_to_handle_at', 'keyctl', 'add_key', 'request_key', 'io_uring_setup', 'io_uring_enter'],
  ...[
    'io_uring_register',
    'io_setup',
    'userfaultfd',
    'bpf',
    'perf_event_open',
    'kexec_load',
    'init_module',
  ],
  ...['finit_module', 'delete_module', 'swapon', 'syslog', 'acct', 'iopl', 'ioperm'],
  ...['quotactl', 'settimeofday', 'clock_settime', 'socketcall', 'fanotify_init'],
  ...['kcmp', 'lookup_dcookie', 'vhangup', 'nfsservctl', 'sethostname'],
]) {
  test(`not allowed: ${name}`, async (t) => {
    t.deepEqual(allowing(await readSeccomp(profilePath, CAPABILITIES), name), []);
  });
}

test('clone is allowed for processes and threads, with no namespace flag', async (t) => {
  const [rule, ...others] = allowing(await readSeccomp(profilePath, CAPABILITIES), 'clone');
  t.deepEqual(others, []);
  const [mask, ...more] = rule?.args ?? [];
  t.deepEqual(more, []);
  t.like(mask, { index: 0, op: 'SCMP_CMP_MASKED_EQ', valueTwo: 0 });
  // CLONE_NEWTIME is no flag of clone: its bit is part of the exit signal there.
  for (const flag of [
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
  ]) {
    t.true(((mask?.value ?? 0) & flag) !== 0, flag.toString(16));
  }
});

test('what commands need is allowed', async (t) => {
  const profile = await readSeccomp(profilePath, CAPABILITIES);
  for (const name of ['execve', 'openat', 'read', 'chown', 'setuid', 'chroot', 'kill', 'fork']) {
    const rules = allowing(profile, name);
    t.true(
      rules.some(({ args }) => args === undefined),
      name,
    );
  }
});

test('a capability brings its system calls with it, none the others', async (t) => {
  const few = await readSeccomp(profilePath, []);
  t.deepEqual(allowing(few, 'chroot'), []);
  const admin = await readSeccomp(profilePath, ['CAP_SYS_ADMIN', 'CAP_SYS_MODULE']);
  t.deepEqual(allowing(admin, 'mount'), []);
  t.deepEqual(allowing(admin, 'setns'), []);
  t.not(allowing(admin, 'init_module').length, 0);
});

test('rules and names are those of the native architecture alone', (t) => {
  const source = {
    defaultAction: 'SCMP_ACT_ERRNO',
    defaultErrnoRet: 38,
    syscalls: [
      { names: ['read', 'mount'], action: 'SCMP_ACT_ALLOW' },
      { names: ['arch_prctl'], action: 'SCMP_ACT_ALLOW', includes: { arches: ['amd64', 'x32'] } },
      { names: ['only'], action: 'SCMP_ACT_ALLOW', includes: { arches: ['arm64'] } },
      { names: ['never'], action: 'SCMP_ACT_ALLOW', excludes: { caps: ['CAP_KILL'] } },
    ],
  };
  const [intel, arm] = [
    resolveSeccomp(source, 'x64', ['CAP_KILL']),
    resolveSeccomp(source, 'arm64', ['CAP_KILL']),
  ];
  t.deepEqual(intel.architectures, ['SCMP_ARCH_X86_64']);
  t.deepEqual(arm.architectures, ['SCMP_ARCH_AARCH64']);
  const own = ['clone', 'socket', 'socketpair', 'fcntl'];
  t.deepEqual(namesOf(intel), ['read', 'arch_prctl', ...own]);
  t.deepEqual(namesOf(arm), ['read', 'only', ...own]);
  t.throws(() => resolveSeccomp(source, 'mips', []), { message: /mips/u });
});

test('a file that is no profile is refused', async (t) => {
  await using directory = await temporaryDirectory();
  const path = `${directory.path}/seccomp.json`;
  await t.throwsAsync(readSeccomp(path, []), { code: 'ENOENT' });
  await writeFile(path, '{"defaultAction": "SCMP_ACT_ALLOW"}');
  await t.throwsAsync(readSeccomp(path, []));
  const whole = await readFile(profilePath, 'utf8');
  await writeFile(path, whole.slice(0, -10));
  await t.throwsAsync(readSeccomp(path, []), { instanceOf: SyntaxError });
});
