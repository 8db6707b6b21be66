/* Contents and sizes of buckets, and the programs that use them from either side. */
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import {
  bucketTest,
  diskOf,
  diskOn,
  lookAtBucket,
  output,
  textOf,
} from '../helpers/bucket-stack.ts';
import { readMount } from '../helpers/buckets.ts';
import { isFull } from '../helpers/full.ts';
import { peakMemoryBytes } from '../helpers/host.ts';
import { waitFor } from '../helpers/wait.ts';
import { GiB, MiB } from '../../shared/units.ts';

const { test, onEach } = bucketTest(['s3rver', 'Azurite'], {
  DISK_SIZE_BYTES: String(24 * GiB), // Sparse; with an inode for every 16 KiB.
  EXEC_TIMEOUT_MS: '290000',
});

const run = promisify(execFile);

/** Keys that are files as they are. */
const FILES = [
  'both',
  'line\nfeed',
  ' a b+c%20&ü\t',
  `${'n'.repeat(249)}/`.repeat(3) + 'm'.repeat(250),
];
/** Keys that are none. */
const OTHERS = ['a//b', '/rooted', 'both/below', 'folder/', 'x'.repeat(1000), 'y//'];

onEach(['Azurite'], 'keys that are no file names are kept and reported', async (t, bucket) => {
  const { api } = t.context;
  for (const key of [...FILES, ...OTHERS]) await bucket.put(key, `in ${key}`);
  await bucket.put('marker/', '');
  const disk = await diskOn(api, bucket);
  const seen = await output(api, disk.id, 'find . -type f -print0');
  t.deepEqual(seen.split('\0').filter(Boolean).sort(), FILES.map((key) => `./${key}`).sort());
  t.is(await output(api, disk.id, 'cat line*; cat n*/n*/n*/m* | wc -c'), 'in line\nfeed1003\n');
  const { problemCount, problems } = await readMount(api, disk.id);
  t.is(problemCount, OTHERS.length);
  t.deepEqual(problems.map(({ key }) => key).sort(), [...OTHERS].sort());
  // Commands cannot change objects that the disk does not show: not by making the same names, nor
  // by removing all.
  await output(api, disk.id, 'mkdir folder a && echo 1 > folder/in && echo 1 > a/b');
  await output(api, disk.id, 'find . -mindepth 1 -delete');
  t.deepEqual(await bucket.keys(), [...OTHERS, 'marker/'].sort());
  for (const key of OTHERS) t.is(await textOf(bucket, key), `in ${key}`);
  // The name that stood in its way is free now.
  await lookAtBucket(api, disk.id, bucket);
  await waitFor('the object to be a file', async () => {
    const text = await output(api, disk.id, 'cat both/below 2>/dev/null || true');
    return text === 'in both/below';
  });
  t.is((await readMount(api, disk.id)).problemCount, OTHERS.length - 1);
});

test('a path that is too long for a key stays on the disk and is reported', async (t) => {
  const { api, newBucket } = t.context;
  const bucket = await newBucket();
  const disk = await diskOn(api, bucket);
  const name = 'd'.repeat(200);
  const deep = `for i in 1 2 3 4 5 6; do mkdir ${name} && cd ${name} || exit; done; echo 1 > f`;
  await output(api, disk.id, `echo 1 > short; ${deep}`);
  t.deepEqual(await bucket.keys(), ['short']);
  const { problemCount, problems, connectionStatus } = await readMount(api, disk.id);
  t.is(connectionStatus, 'connected');
  t.is(problemCount, 1);
  t.regex(problems[0]?.reason ?? '', /longer than the 1024 bytes/u);
});

onEach(['a Berth disk', 's3rver'], 'rclone and a disk read each other', async (t, bucket) => {
  const { api } = t.context;
  await using home = await temporaryDirectory();
  const options = { cwd: home.path, env: { HOME: home.path } };
  const rclone = (...args: string[]): Promise<unknown> =>
    run('/usr/bin/rclone', ['--config', '/dev/null', ...args], options);
  const disk = await diskOn(api, bucket);
  await output(api, disk.id, 'mkdir -p d/e; echo one > d/e/one; seq 1000000 > "d/many ü"');
  await rclone('copy', bucket.rcloneRemote, 'down');
  t.is(await readFile(join(home.path, 'down/d/e/one'), 'utf8'), 'one\n');
  const numbers = await readFile(join(home.path, 'down/d/many ü'), 'utf8');
  t.true(numbers.endsWith('999999\n1000000\n'));
  await writeFile(join(home.path, 'down/d/two'), 'two\n');
  await rm(join(home.path, 'down/d/e/one'));
  await rclone('sync', 'down', bucket.rcloneRemote);
  await lookAtBucket(api, disk.id, bucket);
  await waitFor('what rclone did to be seen', async () => {
    return (await output(api, disk.id, 'cat d/two 2>/dev/null || true')) === 'two\n';
  });
  const seen = await output(api, disk.id, 'find . -type f | sort; wc -l < d/many*');
  t.is(seen, './d/many ü\n./d/two\n1000000\n');
});

const BOTO3 = `
import boto3, sys
url, bucket, key, secret = sys.argv[1:]
s3 = boto3.client('s3', endpoint_url=url, region_name='us-east-1',
                  aws_access_key_id=key, aws_secret_access_key=secret)
s3.put_object(Bucket=bucket, Key='from boto3', Body=b'hello too')
print(s3.get_object(Bucket=bucket, Key='from exec')['Body'].read().decode(), end='')
`;

onEach(['a Berth disk', 's3rver'], 'boto3 and a disk read each other', async (t, bucket) => {
  const { api } = t.context;
  const disk = await diskOn(api, bucket);
  await output(api, disk.id, 'echo hello > "from exec"');
  const { bucketName, bucketEndpoint, accessKeyId, secretAccessKey } = bucket.mountAt(bucket.url);
  const args = [bucketEndpoint, bucketName, accessKeyId, secretAccessKey].map(String);
  const { stdout } = await run('/usr/bin/python3', ['-c', BOTO3, ...args]);
  t.is(stdout, 'hello\n');
  await lookAtBucket(api, disk.id, bucket);
  await waitFor('what boto3 wrote to be seen', async () => {
    const text = await output(api, disk.id, 'cat "from boto3" 2>/dev/null || true');
    return text === 'hello too';
  });
  t.pass();
});

const SQLITE = `
import sqlite3
db = sqlite3.connect('data.db')
db.execute('pragma journal_mode=wal')
db.execute('create table if not exists n (i integer primary key, t text)')
with db: db.executemany('insert into n (t) values (?)', [(str(i) * 50,) for i in range(2000)])
print(db.execute('pragma integrity_check').fetchone()[0], db.execute('select count(*) from n').fetchone()[0])
`;

onEach(['a Berth disk', 'Azurite'], 'git, sqlite and make work on a disk', async (t, bucket) => {
  const { api } = t.context;
  // The default image has no make. It needs nothing but the C library.
  await bucket.put('bin/make', await readFile('/usr/bin/make'));
  await bucket.put('Makefile', 'all: a.out b.out\n%.out: %.in\n\tcp $< $@; echo made $@\n');
  for (const name of ['a.in', 'b.in']) await bucket.put(name, name);
  const disk = await diskOn(api, bucket);
  const sh = (command: string): Promise<string> => output(api, disk.id, command);
  t.is(await sh('chmod +x bin/make; bin/make -s -j2 | sort'), 'made a.out\nmade b.out\n');
  t.is(
    await sh('bin/make; touch b.in; bin/make -s'),
    "make: Nothing to be done for 'all'.\nmade b.out\n",
  );
  t.is(await sh(`python3 - <<'END'\n${SQLITE}\nEND`), 'ok 2000\n');
  const git = 'git -c user.name=a -c user.email=a@b.c';
  await sh(
    `git init -q work && cd work && seq 5000 > f && cp f g && git add . && ${git} commit -qm one`,
  );
  await sh(
    `git clone -q work clone && cd clone && echo more >> f && ${git} commit -qam two && git push -q origin HEAD:two`,
  );
  await sh('cd clone && git gc -q && git fsck --strict && cd ../work && git fsck --strict');
  // Another disk on the bucket has all of it from there.
  const other = await diskOn(api, bucket);
  const check = 'cd work && git fsck --strict && git checkout -q two && tail -n 1 f; cd ..';
  t.is(
    await output(api, other.id, `${check}; python3 - <<'END'\n${SQLITE}\nEND`),
    'more\nok 4000\n',
  );
});

const KEYS = isFull ? 100_000 : 5_000;

test(`a disk on ${KEYS} keys`, async (t) => {
  const { api, stack, newBucket } = t.context;
  const bucket = await newBucket();
  const make = `import os
os.mkdir('many')
for i in range(${KEYS}):
  with open(f'many/{i:06}', 'w') as f: f.write(str(i))`;
  await output(api, diskOf(bucket), `python3 -c "${make}"`);
  const { pid } = stack.agent;
  await writeFile(`/proc/${pid}/clear_refs`, '5'); // Forgets the former peak (proc(5)).
  const before = await peakMemoryBytes(pid);
  const disk = await diskOn(api, bucket);
  const [listMs] = await timed(() => output(api, disk.id, 'true'));
  const [statMs, listed] = await timed(() =>
    output(api, disk.id, 'ls -l many | wc -l; cat many/004999'),
  );
  t.is(listed, `${KEYS + 1}\n4999`);
  const [writeMs] = await timed(() => output(api, disk.id, 'echo 1 > many/new'));
  t.is(await textOf(bucket, 'many/new'), '1\n');
  const grown = (await peakMemoryBytes(pid)) - before;
  t.log(
    `first use ${listMs} ms, ls ${statMs} ms, one write ${writeMs} ms, ${grown / MiB} MiB more`,
  );
  t.true(grown < 512 * MiB);
});

(isFull ? test : test.skip)('an object of 5 GiB, in bounded memory', async (t) => {
  t.timeout(900_000);
  const { api, stack, newBucket } = t.context;
  const bucket = await newBucket();
  const source = diskOf(bucket);
  const sum = await output(api, source, 'head -c 5G /dev/urandom > large && sha256sum < large');
  const disk = await diskOn(api, bucket);
  const { pid } = stack.agent;
  await output(api, disk.id, 'true');
  await writeFile(`/proc/${pid}/clear_refs`, '5');
  const before = await peakMemoryBytes(pid);
  const [readMs, seen] = await timed(() => output(api, disk.id, 'sha256sum < large'));
  t.is(seen, sum);
  const [writeMs] = await timed(() => output(api, disk.id, 'cp large again'));
  t.is(await output(api, source, 'sha256sum < again'), sum);
  const grown = (await peakMemoryBytes(pid)) - before;
  t.log(`read ${readMs} ms, copied and uploaded ${writeMs} ms, ${grown / MiB} MiB more`);
  t.true(grown < 512 * MiB);
});

async function timed<T>(work: () => Promise<T>): Promise<[ms: number, result: T]> {
  const begunAt = performance.now();
  const result = await work();
  return [Math.round(performance.now() - begunAt), result];
}

async function temporaryDirectory(): Promise<AsyncDisposable & { path: string }> {
  const path = await mkdtemp(join(tmpdir(), 'berth-test-'));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true }) };
}
