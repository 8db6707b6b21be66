/*
 * Disks mounted in virtual machines: NFS from a server of the sandbox's own. One stack and few
 * machines, because emulated ones are slow.
 */
import { readdir, readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { mountsBelow } from '../../agent/system/mount-table.ts';
import { paths } from '../../agent/system/paths.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { runDirOf } from '../helpers/host.ts';
import { countRows, insertRows, tryLock } from '../helpers/mounts.ts';
import {
  type ApiSandboxExec,
  beginExec,
  bring,
  createSandbox,
  endedExec,
  execIn,
  forkSandbox,
  getSandbox,
  machinesOf,
  outputOf,
  removeSandbox,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import type { Stack } from '../helpers/stack.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const { serial: test } = stackTest(sandboxSettings(), async ({ api }) => {
  const [{ id: disk }, { id: guarded }] = await Promise.all([createDisk(api), createDisk(api)]);
  await exec(api, guarded, 'mkdir sub && echo inside > sub/file && echo outside > file');
  const mounts = [
    { disk_id: disk, path: '/data/work' },
    { disk_id: guarded, path: '/guarded', subdirectory: 'sub', read_only: true },
  ];
  const [one, two] = await Promise.all([
    createSandbox(api, { mounts }),
    createSandbox(api, { mounts: [{ disk_id: disk }] }),
  ]);
  return { disk, guarded, one: one.sandbox_id, two: two.sandbox_id };
});

/** The NFS servers of this stack's sandboxes, or the processes that keep them. */
async function servers(stack: Stack, program = 'ganesha.nfsd'): Promise<number[]> {
  const found: number[] = [];
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/u.test(pid)) continue;
    // An ended process that waits for its parent has no command line.
    const [groups, command] = await Promise.all(
      ['cgroup', 'cmdline'].map((file) => readFile(`/proc/${pid}/${file}`, 'utf8').catch(() => '')),
    );
    const isOurs = groups?.includes(stack.environment['AGENT_CGROUP'] ?? '-') === true;
    if (isOurs && command?.includes(program) === true) found.push(Number(pid));
  }
  return found;
}

/** A guest caches a disk for a second, by its own clock. */
const shows = (api: ApiClient, id: string, command: string, output: string): Promise<unknown> =>
  waitFor(command, async () => (await execIn(api, id, command)).stdout === output);

test('guests, commands and the object API see one disk within a second, with the same owners', async (t) => {
  const { api, disk, one, two } = t.context;
  await exec(api, disk, 'echo from exec > a && chown 1234:5678 a');
  const seen = await outputOf(api, one, "cat /data/work/a; stat -c '%u:%g' /data/work/a");
  t.is(seen, 'from exec\n1234:5678\n');
  await outputOf(api, one, 'cd /data/work && mkdir d && echo new > d/b && chown 7:8 d/b');
  t.is((await exec(api, disk, "cat d/b; stat -c '%u:%g' d/b")).stdout, 'new\n7:8\n');
  const seenByTwo = "cd /mnt/service; cat d/b; stat -c '%u:%g' d/b";
  await shows(api, two, seenByTwo, 'new\n7:8\n');
  await exec(api, disk, 'echo newer > d/b && rm a && echo object > c');
  await shows(api, one, 'cd /data/work; ls; cat d/b c', 'c\nd\nnewer\nobject\n');
});

test('a read-only mount of a subdirectory is read-only for root, too', async (t) => {
  const { api, guarded, one } = t.context;
  t.is(await outputOf(api, one, 'cat /guarded/file; ls /guarded'), 'inside\nfile\n');
  const script = 'mount -o remount,rw /guarded; touch /guarded/x; echo y > /guarded/file';
  const refused = await execIn(api, one, script);
  t.regex(refused.stderr ?? '', /Read-only file system/u);
  t.is((await exec(api, guarded, 'cat sub/file; ls sub')).stdout, 'inside\nfile\n');
});

/** Number and generation of a file, which are all of its handle that the file system decides. */
const handleOf = (file: string): string =>
  [
    `python3 - <<'END'`,
    'import fcntl, os, struct',
    `file = os.open('${file}', os.O_RDONLY)`,
    'FS_IOC_GETVERSION = 0x80087601',
    "version = struct.unpack('<I', fcntl.ioctl(file, FS_IOC_GETVERSION, b'\\0' * 8)[:4])[0]",
    'print(os.fstat(file).st_ino, version)',
    'END',
  ].join('\n');

test('a client that makes up handles opens nothing outside of what is mounted', async (t) => {
  const { api, guarded, one } = t.context;
  const outside = await Promise.all(
    ['file', '.'].map(async (path) => (await exec(api, guarded, handleOf(path))).stdout.trim()),
  );
  t.regex(outside.join(' '), /^\d+ \d+ \d+ \d+$/u);
  const client = await readFile('test/fixtures/forge-handles.py', 'utf8');
  await outputOf(api, one, `cat > /root/forge.py <<'END'\n${client}\nEND`);
  const forge = `python3 /root/forge.py /guarded ${guarded} ${outside.join(' ')}`;
  t.is(await outputOf(api, one, forge), 'genuine True\ntried True\n');
});

test('locks of one guest keep the other and commands out', async (t) => {
  const { api, disk, one, two } = t.context;
  const holders = await Promise.all(
    (['lockf', 'flock'] as const).map(async (kind) => {
      const { body } = await beginExec(api, one, tryLock(kind, `/data/work/${kind}`, 600));
      const id = body.data.exec_id;
      await waitFor(`the ${kind}`, async () => {
        const path = `/api/sandboxes/${one}/execs/${id}`;
        return (await api.data<ApiSandboxExec>('GET', path)).stdout === 'got\n';
      });
      return id;
    }),
  );
  for (const kind of ['lockf', 'flock'] as const) {
    t.is((await exec(api, disk, tryLock('lockf', kind))).stdout, 'no\n', `a command's, ${kind}`);
    t.is(await outputOf(api, two, tryLock(kind, `/mnt/service/${kind}`)), 'no\n', kind);
  }
  for (const holder of holders) {
    await api.data('POST', `/api/sandboxes/${one}/execs/${holder}/cancel`);
    t.is((await endedExec(api, one, holder)).stdout, 'got\n');
  }
  t.is(await outputOf(api, two, tryLock('lockf', '/mnt/service/lockf')), 'got\n');
});

test('a watch of a mounted disk is refused, because others change it unseen', async (t) => {
  const { api, one } = t.context;
  const path = `/api/sandboxes/${one}/files/watch`;
  const refused = await api.call('GET', `${path}?path=/data/work`);
  t.deepEqual([refused.status, refused.body.code], [409, 'other_file_system']);
  t.regex(refused.body.error ?? '', /a disk is mounted there/u);
  const above = await fetch(`${api.baseUrl}${path}?path=/data&recursive=true`, {
    headers: { authorization: `Bearer ${api.key}` },
  });
  t.regex(await above.text(), /event: end\ndata: .*other_file_system/u);
});

test('programs get the errors that the guide names for what NFS does not have', async (t) => {
  const { api, one } = t.context;
  const script = [
    'import ctypes, errno, fcntl, os, shutil',
    'def error(call):',
    '    try: call()',
    '    except OSError as failure: return errno.errorcode[failure.errno]',
    "os.makedirs('/data/work/limits')",
    "path = '/data/work/limits/file'",
    "file = open(path, 'w+')",
    "print(error(lambda: os.setxattr(path, 'user.name', b'x')))",
    "print(error(lambda: os.open('/data/work/limits', os.O_TMPFILE | os.O_RDWR)))",
    "print(error(lambda: fcntl.ioctl(file, 0x80086601, b'\\0' * 8)))",
    "print(error(lambda: fcntl.ioctl(open(path + '2', 'w'), 0x40049409, file.fileno())))",
    "print(error(lambda: shutil.rmtree('/data/work/limits')))",
  ];
  const printed = await outputOf(api, one, `python3 - <<'END'\n${script.join('\n')}\nEND`);
  t.is(printed, 'ENOTSUP\nENOTSUP\nENOTTY\nENOTSUP\nENOTEMPTY\n');
});

const git = (mount: string): string => `git -c user.name=t -c user.email=t@t -C ${mount}/repo`;

test('SQLite and git work from two guests at once', async (t) => {
  const { api, one, two } = t.context;
  await Promise.all([
    outputOf(api, one, insertRows('/data/work/db', 'one', 4)),
    outputOf(api, two, insertRows('/mnt/service/db', 'two', 4)),
  ]);
  t.is(await countRows(api, two, '/mnt/service/db'), 'one 4\ntwo 4\n');

  const commit = (mount: string, writer: string): string =>
    `for n in 1 2; do until flock -n ${mount}/turn ` +
    `${git(mount)} commit -q --allow-empty -m ${writer}; do sleep 0.1; done; done`;
  await outputOf(api, one, 'git init -q /data/work/repo');
  await Promise.all([
    outputOf(api, one, commit('/data/work', 'one')),
    outputOf(api, two, commit('/mnt/service', 'two')),
  ]);
  // A commit that is tried again leaves the first try's object behind.
  const state = `${git('/mnt/service')} fsck --strict --no-dangling 2>&1 | grep -v notice; ${git('/mnt/service')} log --oneline | wc -l`;
  t.is((await outputOf(api, two, state)).trim(), '4');
});

test('a mounted running sandbox survives its agent, its server, and what keeps that', async (t) => {
  const { api, disk, stack, one } = t.context;
  const loop = 'exec 3>>/data/work/log; n=0; while sleep 0.1; do n=$((n+1)); echo $n >&3; done';
  const { body } = await beginExec(api, one, loop);
  const count = async (): Promise<number> =>
    Number((await exec(api, disk, 'tail -n 1 log')).stdout || 0);
  await waitFor('the first lines', async () => (await count().catch(() => 0)) > 1);
  const before = await servers(stack);
  t.is(before.length, 2);
  await stack.agent.stop('SIGKILL');
  await sleep(1_000);
  t.deepEqual(await servers(stack), before);
  await stack.startAgent();
  t.deepEqual(await servers(stack), before);
  const then = await count();
  await waitFor('lines after the new agent', async () => (await count()) > then + 5);
  for (const pid of before) process.kill(pid, 'SIGKILL');
  await waitFor('new servers', async () => (await servers(stack)).length === 2);
  const later = await count();
  await waitFor('lines after the new server', async () => (await count()) > later + 5, 120_000);
  const shims = await servers(stack, '/serve-disks');
  t.is(shims.length, 2);
  for (const pid of shims) process.kill(pid, 'SIGKILL');
  await waitFor('new shims', async () => {
    const found = await servers(stack, '/serve-disks');
    return found.length === 2 && found.every((pid) => !shims.includes(pid));
  });
  const last = await count();
  await waitFor('lines after the new shim', async () => (await count()) > last + 5, 120_000);
  t.is((await exec(api, disk, 'sort -nc log')).exitCode, 0);
  t.is((await exec(api, disk, 'uniq -d log')).stdout, '');
  await api.data('POST', `/api/sandboxes/${one}/execs/${body.data.exec_id}/cancel`);
});

/**
 * Writes blocks of known content at random places, reads others, and reports the first mismatch.
 */
const RANDOM_IO = [
  'import os, random, sys, time, hashlib',
  "fd = os.open('/data/work/blocks', os.O_RDWR | os.O_CREAT)",
  'block = lambda n, v: hashlib.sha256(b"%d %d" % (n, v)).digest() * 128',
  'state = {}',
  'until = time.monotonic() + float(sys.argv[1])',
  'while time.monotonic() < until:',
  '    n = random.randrange(64); v = random.randrange(1 << 30)',
  '    os.pwrite(fd, block(n, v), n * 4096); state[n] = v',
  '    n = random.choice(list(state))',
  '    assert os.pread(fd, 4096, n * 4096) == block(n, state[n]), n',
  'os.fsync(fd)',
  'for n, v in state.items(): assert os.pread(fd, 4096, n * 4096) == block(n, v), n',
  "print('whole', len(state) > 10)",
].join('\n');

test('files stay open over a pause; a file whose lock it cost fails, and others can have the lock', async (t) => {
  const { api, disk, stack, one, two } = t.context;
  await outputOf(api, one, `cat > /root/io.py <<'END'\n${RANDOM_IO}\nEND`);
  await outputOf(api, one, 'setsid nohup python3 /root/io.py 12 > /root/io.out 2>&1 &');
  await outputOf(api, one, 'until test -e /data/work/blocks; do sleep 0.1; done');
  const locked = [
    'import fcntl, os, time',
    "file = open('/data/work/locked', 'a+b', buffering=0)",
    'fcntl.lockf(file, fcntl.LOCK_EX)',
    "open('/root/has', 'w').close()",
    "while not os.path.exists('/root/go'): time.sleep(0.1)",
    'try:',
    "    file.write(b'x'); os.fsync(file.fileno()); print('silent')",
    'except OSError as error: print(error.strerror)',
  ].join('\n');
  await outputOf(api, one, `cat > /root/locked.py <<'END'\n${locked}\nEND`);
  await outputOf(api, one, 'setsid nohup python3 /root/locked.py > /root/locked.out 2>&1 &');
  await outputOf(api, one, 'until test -e /root/has; do sleep 0.1; done');
  await bring(api, one, 'pause', 'paused');
  t.is((await servers(stack)).length, 1, 'the server of the paused sandbox has ended');
  t.is(await outputOf(api, two, tryLock('lockf', '/mnt/service/locked')), 'got\n');
  t.is((await exec(api, disk, 'ls blocks')).exitCode, 0);
  await bring(api, one, 'resume', 'running');
  await outputOf(api, one, 'touch /root/go; until test -s /root/locked.out; do sleep 0.1; done');
  t.is(await outputOf(api, one, 'cat /root/locked.out'), 'Bad file descriptor\n');
  t.is(
    await outputOf(api, one, 'until test -s /root/io.out; do sleep 0.2; done; cat /root/io.out'),
    'whole True\n',
  );
});

test('a fork mounts the disks, too; a server ends with its machine, and nothing is left', async (t) => {
  const { api, disk, stack, one, two } = t.context;
  const child = await forkSandbox(api, one);
  await outputOf(api, child.sandbox_id, 'echo fork > /data/work/fork');
  t.is((await exec(api, disk, 'cat fork')).stdout, 'fork\n');

  const before = (await servers(stack)).length;
  await stack.agent.stop('SIGKILL');
  for (const pid of await machinesOf([child.sandbox_id])) process.kill(pid, 'SIGKILL');
  await waitFor(
    'the server to end with its machine',
    async () => (await servers(stack)).length === before - 1,
  );
  await stack.startAgent();
  await waitFor(
    'the agent to see it',
    async () => (await getSandbox(api, child.sandbox_id)).status === 'failed',
  );
  for (const id of [child.sandbox_id, one, two]) await removeSandbox(api, id);
  t.deepEqual(await servers(stack), []);
  t.deepEqual(await mountsBelow(paths.heldDisks(runDirOf(stack.environment))), []);
  t.is((await api.call('DELETE', `/api/disks/${disk}`)).status, 200);
});
