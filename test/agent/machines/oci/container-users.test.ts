/* Kernel limits and shared files of containers, two at a time. */
import { randomUUID } from 'node:crypto';
import { chown, mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import {
  Container,
  type ContainerHost,
  type ContainerMount,
} from '../../../../agent/commands/container.ts';
import { UserRanges } from '../../../../agent/machines/oci/container-users.ts';
import { native } from '../../../../agent/native/native.ts';
import { LIMITS } from '../../../../shared/limits.ts';
import {
  openContainers,
  runInContainer,
  type TestContainers,
} from '../../../helpers/containers.ts';
import { waitFor } from '../../../helpers/wait.ts';

const test = anyTest as TestFn<{ containers: TestContainers }>;

const fixture = (name: string): Promise<string> =>
  readFile(new URL(`../../../fixtures/${name}.py`, import.meta.url), 'utf8');

/** Where the ranges of the tests' containers begin. */
const OWN_IDS = 2 ** 31;

const python = (text: string): string => `python3 - <<'END'\n${text}\nEND`;

const isThere = (path: string): Promise<boolean> =>
  stat(path).then(
    () => true,
    () => false,
  );

/** A directory of the host in the place of a disk. */
async function newDisk(containers: TestContainers): Promise<ContainerMount> {
  const diskPath = join(containers.directory, randomUUID());
  await mkdir(diskPath);
  return { diskPath, subdirectory: '', path: '', readOnly: false, dataOnly: false };
}

/** A command that runs beside others until it is ended. */
async function begin(host: ContainerHost, command: string, disk: ContainerMount) {
  const container = new Container(host, randomUUID());
  await container.start();
  const exit = container.run(() => command, [disk]);
  exit.catch(() => undefined);
  return {
    exit,
    end: async () => {
      await container.kill();
      await container.gone;
    },
  };
}

const openDescriptors = async (): Promise<number> => (await readdir('/proc/self/fd')).length;

test.before(async (t) => {
  t.context.containers = await openContainers();
});
test.after.always((t) => t.context.containers[Symbol.asyncDispose]());

test('what one container takes of the kernel’s limits leaves another its own', async (t) => {
  const { containers } = t.context;
  const command = python(await fixture('take-limits'));
  const takers: Awaited<ReturnType<typeof begin>>[] = [];
  const taken: Record<string, number>[] = [];
  try {
    for (let i = 0; i < 2; i += 1) {
      const disk = await newDisk(containers);
      const taker = await begin(containers.host, command, disk);
      takers.push(taker);
      const path = join(disk.diskPath, 'taken.json');
      const ended = taker.exit.then(async ({ stderr }) => {
        throw new Error((await stderr.read()).toString());
      });
      ended.catch(() => undefined);
      await Promise.race([ended, waitFor('limits to be reached', () => isThere(path))]);
      taken.push(JSON.parse(await readFile(path, 'utf8')) as Record<string, number>);
    }
  } finally {
    await Promise.all(takers.map((taker) => taker.end()));
  }
  t.log(taken[0]);
  for (const [name, count] of Object.entries(taken[0] ?? {})) t.true(count > 0, name);
  t.deepEqual(taken[1], taken[0]);
});

test('nothing that one container does to files they share is felt or seen in another', async (t) => {
  const { containers } = t.context;
  const script = await fixture('share-files');
  const [first, second] = [await newDisk(containers), await newDisk(containers)];
  const holder = await begin(containers.host, python(`MARK = 'first'\n${script}`), first);
  try {
    await waitFor('the first to hold them', () => isThere(join(first.diskPath, 'ready')));
    await writeFile(join(second.diskPath, 'end'), '');
    const command = python(`MARK = 'second'\n${script}`);
    const other = await runInContainer(containers.host, command, [second]);
    await writeFile(join(first.diskPath, 'end'), '');
    const { stdout, stderr } = await holder.exit;
    type Report = { results: Record<string, string>; others: string[]; own: string[] };
    const [held, tried] = [(await stdout.read()).toString(), other.stdout].map(
      (text) => JSON.parse(text) as Report,
    );
    t.true(Object.keys(held?.results ?? {}).length > 200, (await stderr.read()).toString());
    t.deepEqual(tried?.results, held?.results);
    t.deepEqual(held?.others, []);
    t.true(held?.own.some((event) => event.startsWith('/etc/passwd ')));
    t.true(held?.own.some((event) => event.startsWith('/.berth/rg ')));
    const leases = Object.entries(held?.results ?? {}).filter(([name]) => / lease /u.test(name));
    t.true(leases.every(([, error]) => error === 'ENOSYS'));
  } finally {
    await holder.end();
  }
});

const LARGEST = 2 ** 32 - 2;

test('owners are the same inside as on the disk; ids of others’ processes are nobody', async (t) => {
  const { containers } = t.context;
  const disk = await newDisk(containers);
  const at = (name: string): string => join(disk.diskPath, name);
  for (const [name, uid, gid] of [
    ['root', 0, 1],
    ['user', 1234, 1235],
    ['domain', 1_234_567_890, 200_513],
    ['largest', LARGEST, LARGEST],
    ['closed', OWN_IDS, OWN_IDS + 1],
  ] as const) {
    await writeFile(at(name), name, { mode: 0o600 });
    await chown(at(name), uid, gid);
  }
  const { stdout, stderr } = await runInContainer(
    containers.host,
    `stat -c '%n %u %g' root user domain largest closed; cat root user domain largest; cat closed
     echo new > made; mkdir -p deep/made; ln -s made link; mkfifo fifo
     chown -h 4321:8765 made deep link; chown ${LARGEST} fifo; chown 65534 user; chmod 640 domain
     chown ${OWN_IDS} made; chown 0 closed; chmod 644 closed`,
    [disk],
  );
  t.is(
    stdout,
    `root 0 1\nuser 1234 1235\ndomain 1234567890 200513\nlargest ${LARGEST} ${LARGEST}
closed 65534 65534\nrootuserdomainlargest`,
  );
  const complaints = stderr
    .trim()
    .split('\n')
    .map((line) => line.replace(/^.*: /u, ''));
  t.deepEqual(complaints, [
    'Permission denied',
    'Invalid argument',
    'Value too large for defined data type',
    'Value too large for defined data type',
  ]);
  const owner = async (name: string): Promise<[number, number]> => {
    const { uid, gid } = await stat(at(name));
    return [uid, gid];
  };
  t.deepEqual(await owner('made'), [4321, 8765]);
  t.deepEqual(await owner('deep'), [4321, 8765]);
  t.deepEqual(await owner('fifo'), [LARGEST, 0]);
  t.deepEqual(await owner('deep/made'), [0, 0]);
  t.deepEqual(await owner('user'), [65534, 1235]);
  t.is((await stat(at('domain'))).mode & 0o777, 0o640);
  t.deepEqual(await owner('closed'), [OWN_IDS, OWN_IDS + 1]);
});

test('no container has ids of another one’s own, or of a machine', async (t) => {
  const machines = { first: 600_099_999, count: 1_000_001 };
  const ranges = new UserRanges(OWN_IDS, [machines]);
  const users = await ranges.take();
  const end = OWN_IDS + LIMITS.userRanges * LIMITS.idsPerContainer;
  const shared = users.mappings.slice(1);
  t.deepEqual(
    shared.map(({ containerID, hostID, size }) => [containerID - hostID, hostID, hostID + size]),
    [
      [0, LIMITS.idsPerContainer, machines.first],
      [0, machines.first + machines.count, OWN_IDS],
      [0, end, 2 ** 32 - 1],
    ],
  );
  users.release();
});

test('root inside is root in its own files, and of each container another user of the host', async (t) => {
  const { containers } = t.context;
  const command = `id -u; cat /proc/self/uid_map; cat /proc/self/gid_map
    cd / && find . -xdev \\( -nouser -o -nogroup \\) -not -path './.berth*' -print
    find /dev /mnt/service -maxdepth 1 -not -user 0 -print
    echo written > /dev/stdout; echo also > /dev/stderr; echo shared > /dev/shm/file
    su_test() { python3 -c "import os; os.setgid(7); os.setuid(1000); print(os.getuid(), os.getgid())"; }; su_test`;
  const seen: string[] = [];
  for (let i = 0; i < 2; i += 1) {
    const { stdout, stderr } = await runInContainer(containers.host, command);
    const [id, ...lines] = stdout.trim().split('\n');
    const maps = lines.splice(0, lines.length - 2);
    const users = maps.splice(0, maps.length / 2);
    t.is(id, '0');
    t.deepEqual(users, maps);
    t.deepEqual(lines, ['written', '1000 7']);
    t.is(stderr, 'also\n');
    const [, first = '', count = ''] = (users[0] ?? '').trim().split(/\s+/u);
    t.true(Number(first) >= 2 ** 31);
    t.is(Number(count), LIMITS.idsPerContainer);
    seen.push(first);
  }
  t.is(new Set(seen).size, 2);
});

test('without users of their own containers work as well, with less of root’s limits', async (t) => {
  const { containers } = t.context;
  const host = { ...containers.host, userRanges: undefined };
  const disk = await newDisk(containers);
  const command = `cat /proc/self/uid_map; ulimit -i -q; echo x > /dev/stdout; echo > made
    chown 3000000 made && stat -c %u made; ls /.berth; : > /.berth/new`;
  const { stdout, stderr } = await runInContainer(host, command, [disk]);
  t.regex(
    stdout,
    /^\s+0\s+0\s+4294967295\n.* 1024\n.* 65536\nx\n3000000\ngrep\ninit\nld.so\nlib\nlocale\nrg\nsearch\n$/u,
  );
  t.regex(stderr, /Read-only file system\n$/u);
});

test.serial('making user namespaces leaves neither processes nor descriptors', async (t) => {
  const ranges = new UserRanges(2 ** 31);
  const first = await ranges.take();
  first.release();
  const before = await openDescriptors();
  const users = await Promise.all(Array.from({ length: 40 }, () => ranges.take()));
  t.is(new Set(users.map(({ firstId }) => firstId)).size, 40);
  t.is(await openDescriptors(), before + 40);
  for (const each of users) each.release();
  t.is(await openDescriptors(), before);
  const children = await readFile(`/proc/self/task/${process.pid}/children`, 'utf8');
  t.is(children, '');
  const { uid } = await stat('/proc/self');
  t.is(uid, 0);
  await t.throwsAsync(native.newUserNamespace(2 ** 32 - 1, '0 1 1'), { code: 'EINVAL' });
});
