/* Disks that stand on object storage. The bucket is another disk, by its own object API. */
import { createHash, randomBytes } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { BucketFront } from '../helpers/bucket-front.ts';
import { createBucketDisk, LOOPBACK_BUCKETS, readMount } from '../helpers/buckets.ts';
import { exec } from '../helpers/disks.ts';
import { ObjectClient } from '../helpers/objects.ts';
import { Stack } from '../helpers/stack.ts';
import { type DiskUser, newDiskUser } from '../helpers/tools.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  objects: ObjectClient;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start({
    ...LOOPBACK_BUCKETS,
    BUCKET_SETTLE_MS: '2000',
    DISK_SIZE_BYTES: String(96 * MiB),
  });
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const url = stack.environment['AGENT_PUBLIC_URL'] ?? '';
  Object.assign(t.context, { api, objects: new ObjectClient(url, api.key) });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

const sha256 = (bytes: Buffer | string): string => createHash('sha256').update(bytes).digest('hex');

const newBucket = ({ stack, api }: Context): Promise<DiskUser> => newDiskUser(stack, api);

async function output(api: ApiClient, disk: string, command: string): Promise<string> {
  const { exitCode, stdout, stderr } = await exec(api, disk, command);
  if (exitCode !== 0) throw new Error(`${command} ended with ${exitCode}: ${stderr}`);
  return stdout;
}

test('objects are files, with their sizes, times and contents', async (t) => {
  const { api, objects } = t.context;
  const bucket = await newBucket(t.context);
  const large = randomBytes(3 * MiB + 17);
  await objects.put(bucket.disk, 'a.txt', 'first\n');
  await objects.put(bucket.disk, 'deep/er/large.bin', large);
  await objects.put(bucket.disk, 'empty', '');
  const disk = await createBucketDisk(api, bucket);
  const listing = await output(api, disk.id, 'find . -type f -printf "%p %s\\n" | sort');
  t.is(listing, `./a.txt 6\n./deep/er/large.bin ${large.length}\n./empty 0\n`);
  t.is(
    await output(api, disk.id, 'cat a.txt; sha256sum < deep/er/large.bin'),
    `first\n${sha256(large)}  -\n`,
  );
});

test('what a command changes is in the bucket when it answers', async (t) => {
  const { api, objects } = t.context;
  const bucket = await newBucket(t.context);
  for (const name of ['kept', 'changed', 'removed', 'moved']) {
    await objects.put(bucket.disk, `dir/${name}`, `old ${name}`);
  }
  const disk = await createBucketDisk(api, bucket);
  const command =
    'echo new > made; printf more >> dir/changed; rm dir/removed; mkdir to; mv dir/moved to/there; head -c 9000000 /dev/urandom > big; sha256sum < big';
  const [digest = ''] = (await output(api, disk.id, command)).split(' ');
  const text = async (key: string): Promise<string | undefined> => {
    const { status, body } = await objects.get(bucket.disk, key);
    return status === 200 ? body.toString() : undefined;
  };
  t.is(await text('made'), 'new\n');
  t.is(await text('dir/kept'), 'old kept');
  t.is(await text('dir/changed'), 'old changedmore');
  t.is(await text('dir/removed'), undefined);
  t.is(await text('dir/moved'), undefined);
  t.is(await text('to/there'), 'old moved');
  t.is(sha256((await objects.get(bucket.disk, 'big')).body), digest);
  t.like(await readMount(api, disk.id), { connectionStatus: 'connected', problemCount: 0 });
});

test('a placeholder that is cut by its path keeps what is left', async (t) => {
  const { api, objects } = t.context;
  const bucket = await newBucket(t.context);
  await objects.put(bucket.disk, 'f', '0123456789');
  const disk = await createBucketDisk(api, bucket);
  const cut = `perl -e 'truncate("f", 4) or die $!; open(F, "<", "f"); print <F>'`;
  t.is(await output(api, disk.id, cut), '0123');
  t.is((await objects.get(bucket.disk, 'f')).body.toString(), '0123');
});

/** Has the disk look at its bucket at once, where it would do so within half a minute. */
async function lookAtBucket(api: ApiClient, diskId: string, user: DiskUser): Promise<void> {
  const { id } = await readMount(api, diskId);
  const keys = { accessKeyId: user.identifier, secretAccessKey: user.token };
  await api.data('POST', `/api/disks/${diskId}/mounts/${id}/credentials`, keys);
}

test('changes by others are seen, and a conflict keeps both sides', async (t) => {
  const { api, objects } = t.context;
  const bucket = await newBucket(t.context);
  for (const name of ['clean', 'gone', 'both']) await objects.put(bucket.disk, name, 'old');
  const disk = await createBucketDisk(api, bucket);
  await output(api, disk.id, 'cat clean gone both');
  await objects.put(bucket.disk, 'clean', 'theirs');
  await objects.put(bucket.disk, 'added/by/them', 'new');
  await objects.call('DELETE', `/${bucket.disk}/gone`);
  await objects.put(bucket.disk, 'both', 'theirs as well');
  await output(api, disk.id, 'printf mine > both');
  t.is((await objects.get(bucket.disk, 'both')).body.toString(), 'theirs as well');
  await lookAtBucket(api, disk.id, bucket);
  await waitFor('the changes to be seen', async () => {
    return (await output(api, disk.id, 'cat added/by/them 2>/dev/null || true')) === 'new';
  });
  t.is(
    await output(api, disk.id, 'cat clean both; ls gone 2>&1 || true'),
    "theirstheirs as wellls: cannot access 'gone': No such file or directory\n",
  );
  t.is(await output(api, disk.id, 'cat both.conflict-*'), 'mine');
  const { problems } = await readMount(api, disk.id);
  t.like(problems[0], { key: 'both' });
  t.regex(problems[0]?.reason ?? '', /both\.conflict-/u);
});

test('keys with line feeds and long parts are files', async (t) => {
  const { api, objects } = t.context;
  const bucket = await newBucket(t.context);
  await objects.put(bucket.disk, 'line\nfeed', 'x');
  await objects.put(bucket.disk, `${'n'.repeat(200)}/${'m'.repeat(200)}`, 'y');
  const disk = await createBucketDisk(api, bucket);
  t.is(await output(api, disk.id, 'cat line*feed n*/m*'), 'xy');
  t.like(await readMount(api, disk.id), { problemCount: 0 });
});

test('what is cached can be read while the bucket is away; a write fails and is kept', async (t) => {
  const { api, objects } = t.context;
  const bucket = await newBucket(t.context);
  await using front = await BucketFront.before(bucket.s3Url);
  await objects.put(bucket.disk, 'cached', 'here');
  const disk = await createBucketDisk(api, bucket, { bucketEndpoint: front.url });
  t.is(await output(api, disk.id, 'cat cached'), 'here');
  front.mode = 'away';
  t.is(await output(api, disk.id, 'cat cached'), 'here');
  const reply = await api.call('POST', `/api/disks/${disk.id}/exec`, {
    command: 'echo 1 > written',
  });
  t.is(reply.status, 500);
  t.is(reply.body.code, 'outcome_unknown');
  t.regex(reply.body.error, /the bucket does not take .* cannot be reached/u);
  t.like(await readMount(api, disk.id), { connectionStatus: 'error' });
  front.mode = 'open';
  await waitFor('the write to be uploaded', async () => {
    return (await objects.get(bucket.disk, 'written')).body.toString() === '1\n';
  });
  await waitFor('the bucket to be shown as connected', async () => {
    return (await readMount(api, disk.id)).connectionStatus === 'connected';
  });
  t.pass();
});

test('a bucket that asks for fewer requests gets them', async (t) => {
  const { api, objects } = t.context;
  const bucket = await newBucket(t.context);
  await using front = await BucketFront.before(bucket.s3Url);
  await objects.put(bucket.disk, 'f', 'here');
  const disk = await createBucketDisk(api, bucket, { bucketEndpoint: front.url });
  front.mode = 'busy';
  t.is(await output(api, disk.id, 'cat f; for i in 1 2 3 4 5; do echo $i > $i; done'), 'here');
  t.is((await objects.get(bucket.disk, '5')).body.toString(), '5\n');
  front.mode = 'open';
});

/** The processes of the disk's helper. */
async function helpersOf(diskId: string): Promise<number[]> {
  const pids = (await readdir('/proc')).filter((name) => /^\d+$/u.test(name)).map(Number);
  const lines = await Promise.all(
    pids.map((pid) => readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')),
  );
  return pids.filter((_, i) => lines[i]?.includes(`/${diskId}.sock`));
}

const sumsOf = (text: string): string[] =>
  text
    .split('\n')
    .filter(Boolean)
    .map((line) => line.replace(/ .*/u, ''));

/** A disk whose files nobody has read yet, and their sums. */
async function unreadFiles(
  { api, ...context }: Context,
  make: string,
): Promise<{ id: string; sums: string[] }> {
  const bucket = await newBucket({ api, ...context });
  const sums = sumsOf(await output(api, bucket.disk, `${make}; sha256sum f*`));
  const { id } = await createBucketDisk(api, bucket);
  await output(api, id, 'true');
  return { id, sums };
}

const SMALL_FILES = 'for i in $(seq 10 50); do head -c 2000 /dev/urandom > f$i; done';

/** Reads all files while the helper's processes are killed. @returns a line for each file */
async function readWhileKilled(
  t: ExecutionContext<Context>,
  id: string,
  pauseMs: number,
  kill: (pids: readonly number[], round: number) => void,
): Promise<string[]> {
  const reads = { areLeft: true };
  const command = 'for f in f*; do sha256sum < $f || echo unread; done';
  const reading = output(t.context.api, id, command).finally(() => (reads.areLeft = false));
  let kills = 0;
  while (reads.areLeft) {
    await sleep(pauseMs);
    const pids = await helpersOf(id);
    if (pids.length !== 3) continue;
    kill(pids, kills);
    kills += 1;
  }
  t.log(`${kills} kills`);
  t.true(kills > 0);
  return sumsOf(await reading);
}

test('no open fails and no zeros are read while processes of the helper are killed', async (t) => {
  const { id, sums } = await unreadFiles(t.context, SMALL_FILES);
  // One of the three at a time: those that are left start it anew.
  const lines = await readWhileKilled(t, id, 20, (pids, round) => {
    process.kill(pids[round % 3] ?? 0, 'SIGKILL');
  });
  t.deepEqual(lines, sums);
});

test('opens wait or fail, but read no zeros, while the whole helper is killed at once', async (t) => {
  const { api } = t.context;
  const { id, sums } = await unreadFiles(t.context, SMALL_FILES);
  const lines = await readWhileKilled(t, id, 150, (pids) => {
    for (const pid of pids) process.kill(pid, 'SIGKILL');
  });
  t.deepEqual(
    lines.filter((line, i) => line !== 'unread' && line !== sums[i]),
    [],
  );
  t.is(lines.length, sums.length);
  t.deepEqual(sumsOf(await output(api, id, 'sha256sum f*')), sums);
});

test('a disk that is smaller than its bucket gives up what is not in use', async (t) => {
  const { api } = t.context;
  // 120 MB of mostly holes in the bucket, but not on the disk of 96 MiB.
  const make =
    'for i in $(seq 8); do head -c 99999 /dev/urandom > f$i; truncate -s 15M f$i; echo end >> f$i; done';
  const { id, sums } = await unreadFiles(t.context, make);
  const early = await output(
    api,
    id,
    'exec 3< f1; chmod 640 f2; echo mine > own; sha256sum f* - <&3',
  );
  t.deepEqual(sumsOf(early), [...sums, sums[0]]);
  t.deepEqual(sumsOf(await output(api, id, 'sha256sum f*')), sums);
  t.is(await output(api, id, "stat -c '%a %s' f2; cat own"), '640 15728644\nmine\n');
  const { stderr } = await exec(api, id, 'head -c 200000000 /dev/zero > dirty; rm dirty');
  t.regex(stderr, /No space left on device/u);
  t.deepEqual(sumsOf(await output(api, id, 'sha256sum f*')), sums);
  t.is((await readMount(api, id)).problemCount, 0);
});

test.serial('what was acknowledged before the agent was killed reaches the bucket', async (t) => {
  const { api, objects, stack } = t.context;
  const bucket = await newBucket(t.context);
  const disk = await createBucketDisk(api, bucket, { writeBack: 'lazy' });
  await output(api, disk.id, 'true');
  await output(api, disk.id, 'mkdir d; for i in $(seq 20); do echo $i > d/$i; done');
  await stack.agent.stop('SIGKILL');
  await stack.startAgent();
  await waitFor('all files to be in the bucket', async () => {
    const { text } = await objects.call('GET', `/${bucket.disk}?list-type=2&prefix=d/`);
    return text.split('<Key>').length === 21;
  });
  t.is((await objects.get(bucket.disk, 'd/20')).body.toString(), '20\n');
});

test('searches, object requests and shared files have the contents of the bucket', async (t) => {
  const { api, objects } = t.context;
  const bucket = await newBucket(t.context);
  await objects.put(bucket.disk, 'logs/a', 'one needle\n');
  await objects.put(bucket.disk, 'logs/b', 'nothing\n');
  const disk = await createBucketDisk(api, bucket);
  const { matches } = await api.data<{ matches: { file: string }[] }>(
    'POST',
    `/api/disks/${disk.id}/grep`,
    {
      directory: 'logs',
      pattern: 'needle',
      recursive: true,
    },
  );
  t.deepEqual(
    matches.map(({ file }) => file),
    ['logs/a'],
  );
  t.is((await objects.get(disk.id, 'logs/b')).body.toString(), 'nothing\n');
  const { status, text } = await objects.put(disk.id, 'put', 'by the object API');
  t.is(status, 200, text);
  t.is((await objects.get(bucket.disk, 'put')).body.toString(), 'by the object API');
  t.is((await objects.call('DELETE', `/${disk.id}/logs/b`)).status, 204);
  t.is((await objects.get(bucket.disk, 'logs/b')).status, 404);
  const { url } = await api.data<{ url: string }>('POST', `/api/disks/${disk.id}/share`, {
    key: 'logs/a',
  });
  t.is(await (await fetch(url)).text(), 'one needle\n');
});
