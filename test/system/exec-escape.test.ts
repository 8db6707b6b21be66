/*
 * Attempts of a command to leave its container, from the inside (test/fixtures/escape.py) and
 * looked at from the outside. The device nodes are put on the disk by the host beforehand, as if
 * somebody had made them elsewhere.
 */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import { run } from '../../agent/system/spawn.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, diskFolder, exec } from '../helpers/disks.ts';
import { diskContents, diskMount } from '../helpers/host.ts';
import { Stack } from '../helpers/stack.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  diskId: string;
  /** A disk of another account. */
  otherId: string;
  /** A file of the host outside every container and disk. */
  hostFile: string;
  /** The error that refused each attempt, by label; `done` when nothing refused it. */
  attempts: Record<string, string>;
}

const test = anyTest as TestFn<Context>;
const secret = randomBytes(16).toString('hex');
const abstractName = `berth-test-${secret.slice(0, 8)}`;
const abstractServer = createServer((socket) => socket.destroy());

const portOf = (stack: Stack, name: string): [string, number] => [
  '127.0.0.1',
  Number(stack.environment[name]),
];

/** Network addresses that a container must not reach. */
function addresses(stack: Stack): [string, number][] {
  const ports = ['CONTROL_PORT', 'CONTROL_INTERNAL_PORT', 'AGENT_PORT', 'AGENT_ADMIN_PORT'];
  const redisPort = Number(new URL(stack.environment['REDIS_URL'] ?? '').port);
  const own = Object.values(networkInterfaces())
    .flat()
    .map((info) => info?.address ?? '')
    .filter((address) => address !== '' && !address.startsWith('fe80'));
  return [
    ...ports.map((name) => portOf(stack, name)),
    ...own.map((address): [string, number] => [address, redisPort]),
    ['10.0.0.1', 80],
    ['169.254.169.254', 80],
    ['192.0.2.1', 443],
  ];
}

async function attempt(context: Context): Promise<Record<string, string>> {
  const { stack, api, diskId, otherId, hostFile } = context;
  const targets = {
    addresses: addresses(stack),
    abstractSockets: [abstractName],
    unixSockets: ['/run/docker.sock', '/run/containerd/containerd.sock', '/run/systemd/private'],
    paths: [
      hostFile,
      join(diskContents(stack, otherId), 'secret'),
      join(diskFolder(stack, otherId), 'image.ext4'),
      join(stack.environment['AGENT_DATA_DIR'] ?? '', 'journal.sqlite'),
      join(stack.directory, 'redis.conf'),
    ],
  };
  const script = await readFile(new URL('../fixtures/escape.py', import.meta.url), 'utf8');
  const command = `python3 - <<'END'\nATTEMPTS = ${JSON.stringify(targets)}\n${script}\nEND`;
  const { stdout, stderr, exitCode } = await exec(api, diskId, command);
  if (exitCode !== 0) throw new Error(`the attempts ended with ${exitCode}: ${stderr}`);
  return JSON.parse(stdout) as Record<string, string>;
}

test.before(async (t) => {
  const stack = await Stack.start();
  t.context.stack = stack;
  t.context.api = await stack.newClient();
  t.context.diskId = (await createDisk(t.context.api)).id;
  const other = await stack.newClient();
  t.context.otherId = (await createDisk(other)).id;
  await exec(other, t.context.otherId, `echo ${secret} > secret`);
  t.context.hostFile = join(stack.directory, 'host-secret');
  await writeFile(t.context.hostFile, secret);
  abstractServer.listen(`\0${abstractName}`);
  await once(abstractServer, 'listening');
  const image = join(diskFolder(stack, t.context.diskId), 'image.ext4');
  const nodes = [
    'mknod planted-memory c 1 1',
    'mknod planted-null c 1 3',
    'mknod planted-loop b 7 0',
    'write /usr/bin/id planted-setuid',
    'set_inode_field planted-setuid mode 0104755',
  ];
  await run('debugfs', ['-w', '-f', '-', image], { input: `${nodes.join('\n')}\n` });
  t.context.attempts = await attempt(t.context);
});

test.after.always(async (t) => {
  abstractServer.close();
  await t.context.stack.stop();
});

/** Asserts that the matching attempts were made and each refused with one of these errors. */
const refused = test.macro<[label: RegExp, errors: string[], count: number]>({
  exec(t, label, errors, count) {
    const made = Object.entries(t.context.attempts).filter(([name]) => label.test(name));
    t.true(made.length >= count, `${made.length} attempts`);
    t.deepEqual(
      made.filter(([, error]) => !errors.includes(error)),
      [],
    );
  },
  title: (given = '') => `refused: ${given}`,
});

test(
  'mounts',
  refused,
  /^(mount|bind|remount|unmount|pivot|open_tree|move_mount|fs)/u,
  ['ENOSYS', 'EPERM'],
  11,
);
test('new namespaces', refused, /^(unshare|clone3?) /u, ['ENOSYS', 'EPERM'], 20);
test('other namespaces', refused, /^setns/u, ['ENOSYS', 'EPERM'], 8);
test('file handles', refused, /handle_at/u, ['ENOSYS', 'EPERM'], 2);
test('the key ring', refused, /key/u, ['ENOSYS', 'EPERM', 'EAFNOSUPPORT'], 3);
test('bpf, perf, io_uring, userfaultfd', refused, /^(bpf|perf|io_uring|user)/u, ['ENOSYS'], 4);
test('another kernel', refused, /^(kexec|reboot)/u, ['EPERM', 'ENOSYS'], 3);
test('kernel modules', refused, /_module$/u, ['EPERM', 'ENOSYS'], 3);
test(
  'the host’s clock, accounting, swap, quotas, log, name',
  refused,
  /^(settime|acct|swap|quota|syslog|sethost|fanotify|vhangup|io[pb])/u,
  ['EPERM', 'ENOSYS'],
  8,
);
test(
  'tracing init and its memory',
  refused,
  / of init$|^(ptrace|kcmp) init$/u,
  ['EPERM', 'EACCES', 'ENOENT', 'EBADF'],
  30,
);
test(
  'init’s socket to the agent',
  refused,
  /pidfd_getfd|fd \d of init/u,
  ['EPERM', 'EACCES', 'ENOENT'],
  24,
);
test(
  'settings of the kernel',
  refused,
  /^write |make a cgroup|oom/u,
  ['EROFS', 'ENOENT', 'EACCES', 'EPERM', 'ETXTBSY', 'EBUSY'],
  20,
);
test('devices', refused, /^open \/dev/u, ['ENOENT', 'EPERM', 'EACCES'], 15);
test('making device nodes', refused, /^mknod/u, ['EPERM'], 6);
test('device nodes that are on the disk', refused, /^open planted/u, ['EACCES', 'EPERM'], 3);
test(
  'sockets past the network namespace',
  refused,
  /socket/u,
  ['EPERM', 'ENOSYS', 'EAFNOSUPPORT', 'EINVAL'],
  40,
);
test(
  'the network',
  refused,
  /^connect \d|^connect [0-9a-f:]+:/u,
  ['ECONNREFUSED', 'ENETUNREACH', 'EADDRNOTAVAIL'],
  8,
);
test('sockets of the host', refused, /^connect [@/]/u, ['ECONNREFUSED', 'ENOENT'], 4);
test('files of the host and of other disks', refused, /^open \/(?!dev)/u, ['ENOENT', 'EACCES'], 25);
test('leaving a chroot', refused, /chroot/u, ['ENOENT'], 1);

test('no attempt succeeded', (t) => {
  const made = Object.entries(t.context.attempts);
  t.true(made.length > 200);
  t.deepEqual(
    made.filter(([, error]) => error === 'done'),
    [],
  );
});

test('root inside is nobody on the host', async (t) => {
  const { api, diskId, stack } = t.context;
  const { stdout } = await exec(
    api,
    diskId,
    'id -u; head -n 1 /proc/self/uid_map; touch made-by-root',
  );
  const [id, first = '', host = ''] = stdout.trim().split(/\s+/u);
  t.deepEqual([id, first], ['0', '0']);
  t.true(Number(host) >= 2 ** 31, host);
  t.is((await stat(join(diskContents(stack, diskId), 'made-by-root'))).uid, 0);
});

test('init outlives every signal from inside', async (t) => {
  const { api, diskId } = t.context;
  const command =
    'for signal in {1..64}; do kill -$signal 1 2>/dev/null; done; sleep 0.1; echo alive';
  const { stdout, exitCode } = await exec(api, diskId, command);
  t.is(stdout, 'alive\n');
  t.is(exitCode, 0);
});

test('no program gains rights: set-user-id has no effect', async (t) => {
  const { api, diskId } = t.context;
  const command = `
    cp /usr/bin/id /tmp/own-setuid; chmod 4755 /tmp/own-setuid; cp -p /tmp/own-setuid own-setuid
    stat -c %a planted-setuid own-setuid
    cat > /tmp/as-nobody.py <<'END'
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]: os.spawnv(os.P_WAIT, path, [path, "-u"])
END
    python3 /tmp/as-nobody.py ./planted-setuid ./own-setuid /tmp/own-setuid
    grep NoNewPrivs /proc/self/status`;
  const { stdout, stderr } = await exec(api, diskId, command);
  t.is(stdout, '4755\n4755\n65534\n65534\n65534\nNoNewPrivs:\t1\n', stderr);
});

test('capabilities are few and cannot be added', async (t) => {
  const { api, diskId } = t.context;
  const { stdout } = await exec(api, diskId, 'grep ^Cap /proc/self/status');
  const sets = Object.fromEntries(
    stdout
      .trim()
      .split('\n')
      .map((line) => [line.slice(0, 6), BigInt(`0x${line.slice(8)}`)]),
  );
  // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE,
  // SYS_CHROOT
  const allowed = [0, 1, 3, 4, 5, 6, 7, 8, 10, 18].reduce(
    (set, bit) => set | (1n << BigInt(bit)),
    0n,
  );
  t.deepEqual(sets, { CapInh: 0n, CapPrm: allowed, CapEff: allowed, CapBnd: allowed, CapAmb: 0n });
});

test('nothing of the host’s settings and secrets can be read', async (t) => {
  const { api, diskId, stack } = t.context;
  const command = `cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; env
    find / -xdev -newermt '-1 hour' -type f -not -path '/proc/*' -not -path '/sys/*' -exec head -c 100000 {} +`;
  const { stdout, stderr } = await exec(api, diskId, `(${command}) 2>&1`);
  t.true(stdout.includes('HOME=/root'));
  const secrets = ['CLUSTER_SECRET', 'ENCRYPTION_KEY', 'REDIS_URL', 'CLUSTER_ID', 'STORAGE_DIR'];
  for (const name of secrets) {
    const value = stack.environment[name] ?? name;
    t.false((stdout + stderr).includes(value), name);
    t.false((stdout + stderr).includes(`${name}=`), name);
  }
  t.false(stdout.includes(secret));
  t.false(stdout.includes(api.key));
});

test('other disks do not show: neither ids, nor names, nor activity', async (t) => {
  const { api, diskId, otherId, stack } = t.context;
  const command =
    'cat /proc/mounts /proc/self/mountinfo /proc/self/mounts; cat /proc/diskstats /proc/partitions; find /sys -name "loop*"; grep -rs . /sys/block /sys/devices/virtual /sys/fs | head -c 1000000';
  const { stdout } = await exec(api, diskId, command);
  t.false(stdout.includes(otherId));
  t.false(stdout.includes('image.ext4'));
  t.notRegex(stdout, /^\s*7\s+\d+ .*loop/mu);
  t.false(stdout.includes(diskMount(stack, otherId)));
});

test('a disk’s contents cannot name another disk to the service', async (t) => {
  const { api, diskId, otherId, stack } = t.context;
  const links = [
    `rm -rf /mnt/service/lost+found; ln -sfn ${diskContents(stack, otherId)} /mnt/service/mounts`,
    'ln -sfn / /mnt/service/..data; ln -sfn ../../../../../../ /mnt/service/up',
    'rm -f /mnt/archil; ln -s /proc/1/root /mnt/archil',
  ];
  await exec(api, diskId, links.join('\n'));
  const { stdout } = await exec(
    api,
    diskId,
    'cat mounts/secret up/etc/hostname-of-host 2>&1; readlink /mnt/archil; pwd -P',
  );
  t.regex(stdout, /\/mnt\/service\n\/mnt\/service\n$/u);
  t.false(stdout.includes(secret));
});

test('the files of the host are unchanged', async (t) => {
  const { hostFile, otherId, stack, api } = t.context;
  t.is(await readFile(hostFile, 'utf8'), secret);
  t.is(await readFile(join(diskContents(stack, otherId), 'secret'), 'utf8'), `${secret}\n`);
  t.is((await exec(api, t.context.diskId, 'echo well')).stdout, 'well\n');
});
