/* Disks that stand on object storage: what is promised holds for every kind of it. */
import { createHash, randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ExecutionContext } from 'ava';
import {
  type BucketContext,
  bucketTest,
  diskOf,
  diskOn,
  lookAtBucket,
  output,
  textOf,
} from '../helpers/bucket-stack.ts';
import { helpersOf } from '../helpers/bucket-helpers.ts';
import { readMount } from '../helpers/buckets.ts';
import { exec } from '../helpers/disks.ts';
import { isFull } from '../helpers/full.ts';
import { waitFor } from '../helpers/wait.ts';
import { MiB } from '../../shared/units.ts';

/** Ceph's gateway brings 100 packages and takes a quarter of a minute to start. */
const CEPH = isFull ? (['radosgw'] as const) : [];
const ALL = ['a Berth disk', 's3rver', 'Azurite', ...CEPH] as const;
/** A server for each of the two clients. */
const BOTH = ['a Berth disk', 'Azurite'] as const;

const { test, onEach } = bucketTest(['s3rver', 'Azurite', ...CEPH], {
  BUCKET_SETTLE_MS: '2000',
  DISK_SIZE_BYTES: String(96 * MiB),
});

const sha256 = (bytes: Buffer | string): string => createHash('sha256').update(bytes).digest('hex');

onEach(ALL, 'objects are files, with their sizes, times and contents', async (t, bucket) => {
  const { api } = t.context;
  const large = randomBytes(9 * MiB + 17);
  await bucket.put('a.txt', 'first\n');
  await bucket.put('deep/er/large.bin', large);
  await bucket.put('empty', '');
  const disk = await diskOn(api, bucket);
  const listing = await output(api, disk.id, 'find . -type f -printf "%p %s\\n" | sort');
  t.is(listing, `./a.txt 6\n./deep/er/large.bin ${large.length}\n./empty 0\n`);
  t.is(
    await output(api, disk.id, 'cat a.txt empty; sha256sum < deep/er/large.bin'),
    `first\n${sha256(large)}  -\n`,
  );
});

onEach(ALL, 'what a command changes is in the bucket when it answers', async (t, bucket) => {
  const { api } = t.context;
  for (const name of ['kept', 'changed', 'removed', 'moved']) {
    await bucket.put(`dir/${name}`, `old ${name}`);
  }
  const disk = await diskOn(api, bucket);
  const command =
    'echo new > made; printf more >> dir/changed; rm dir/removed; mkdir to; mv dir/moved to/there; touch none; head -c 9000000 /dev/urandom > big; sha256sum < big';
  const [digest = ''] = (await output(api, disk.id, command)).split(' ');
  t.deepEqual(await bucket.keys(), ['big', 'dir/changed', 'dir/kept', 'made', 'none', 'to/there']);
  t.is(await textOf(bucket, 'made'), 'new\n');
  t.is(await textOf(bucket, 'none'), '');
  t.is(await textOf(bucket, 'dir/kept'), 'old kept');
  t.is(await textOf(bucket, 'dir/changed'), 'old changedmore');
  t.is(await textOf(bucket, 'dir/removed'), undefined);
  t.is(await textOf(bucket, 'to/there'), 'old moved');
  t.is(sha256((await bucket.get('big')) ?? ''), digest);
  await waitFor('the bucket to be shown as connected', async () => {
    return (await readMount(api, disk.id)).connectionStatus === 'connected';
  });
  t.is((await readMount(api, disk.id)).problemCount, 0);
});

onEach(BOTH, 'a disk has the objects below its prefix', async (t, bucket) => {
  const { api } = t.context;
  await bucket.put('outside', 'x');
  await bucket.put('runs/2026/inside', 'here');
  const disk = await diskOn(api, bucket, { bucketPrefix: 'runs/2026' });
  t.is(await output(api, disk.id, 'find . -type f; cat inside; echo 1 > made'), './inside\nhere');
  t.is(await textOf(bucket, 'runs/2026/made'), '1\n');
});

test('a placeholder that is cut by its path keeps what is left', async (t) => {
  const { api } = t.context;
  const bucket = await t.context.newBucket();
  await bucket.put('f', '0123456789');
  const disk = await diskOn(api, bucket);
  const cut = `perl -e 'truncate("f", 4) or die $!; open(F, "<", "f"); print <F>'`;
  t.is(await output(api, disk.id, cut), '0123');
  t.is(await textOf(bucket, 'f'), '0123');
});

onEach(BOTH, 'changes by others are seen; a conflict keeps both sides', async (t, bucket, name) => {
  const { api } = t.context;
  await using front = await t.context.frontOf(bucket, name);
  for (const key of ['clean', 'gone', 'both']) await bucket.put(key, 'old');
  const disk = await diskOn(api, bucket, {}, front.url);
  await output(api, disk.id, 'cat clean gone both');
  front.mode = 'unlisted'; // So that nothing is seen before the disk is written to.
  await bucket.put('clean', 'theirs');
  await bucket.put('added/by/them', 'new');
  await bucket.remove('gone');
  await bucket.put('both', 'theirs as well');
  await output(api, disk.id, 'printf mine > both');
  t.is(await textOf(bucket, 'both'), 'theirs as well');
  front.mode = 'open';
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
  const { api } = t.context;
  const bucket = await t.context.newBucket();
  await bucket.put('line\nfeed', 'x');
  await bucket.put(`${'n'.repeat(200)}/${'m'.repeat(200)}`, 'y');
  const disk = await diskOn(api, bucket);
  t.is(await output(api, disk.id, 'cat line*feed n*/m*'), 'xy');
  t.like(await readMount(api, disk.id), { problemCount: 0 });
});

onEach(
  BOTH,
  'what is cached can be read while the bucket is away; a write fails and is kept',
  async (t, bucket, name) => {
    const { api } = t.context;
    await using front = await t.context.frontOf(bucket, name);
    await bucket.put('cached', 'here');
    const disk = await diskOn(api, bucket, {}, front.url);
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
      return (await textOf(bucket, 'written')) === '1\n';
    });
    await waitFor('the bucket to be shown as connected', async () => {
      return (await readMount(api, disk.id)).connectionStatus === 'connected';
    });
    t.pass();
  },
);

onEach(BOTH, 'a bucket that asks for fewer requests gets them', async (t, bucket, name) => {
  const { api } = t.context;
  await using front = await t.context.frontOf(bucket, name);
  await bucket.put('f', 'here');
  const disk = await diskOn(api, bucket, {}, front.url);
  front.mode = 'busy';
  t.is(await output(api, disk.id, 'cat f; for i in 1 2 3 4 5; do echo $i > $i; done'), 'here');
  t.is(await textOf(bucket, '5'), '5\n');
  front.mode = 'open';
});

test('wrong secrets of an Azure application are found out; right ones count at once', async (t) => {
  const { api, newBucket } = t.context;
  const bucket = await newBucket('Azurite');
  await bucket.put('f', 'here');
  const disk = await diskOn(api, bucket, { clientSecret: 'wrong' });
  const [mount] = disk.mounts;
  t.like(mount, { connectionStatus: 'error', authorizationType: 'oauth' });
  t.regex(mount?.authError ?? '', /the application or its secret \(invalid_client\)/u);
  t.false(JSON.stringify(mount).includes('wrong'));
  await lookAtBucket(api, disk.id, bucket);
  t.is(await output(api, disk.id, 'cat f'), 'here');
  await waitFor('the bucket to be shown as connected', async () => {
    return (await readMount(api, disk.id)).connectionStatus === 'connected';
  });
});

const sumsOf = (text: string): string[] =>
  text
    .split('\n')
    .filter(Boolean)
    .map((line) => line.replace(/ .*/u, ''));

/** A disk whose files nobody has read yet, and their sums. */
async function unreadFiles(
  { api, newBucket }: BucketContext,
  make: string,
): Promise<{ id: string; sums: string[] }> {
  const bucket = await newBucket();
  const sums = sumsOf(await output(api, diskOf(bucket), `${make}; sha256sum f*`));
  const { id } = await diskOn(api, bucket);
  await output(api, id, 'true');
  return { id, sums };
}

const SMALL_FILES = 'for i in $(seq 10 50); do head -c 2000 /dev/urandom > f$i; done';

/** Reads all files while the helper's processes are killed. @returns a line for each file */
async function readWhileKilled(
  t: ExecutionContext<BucketContext>,
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
  // Kills the three in turn: those that are left start it anew.
  const lines = await readWhileKilled(t, id, 20, (pids, round) => {
    const pid = pids[round % 3];
    if (pid !== undefined) process.kill(pid, 'SIGKILL');
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
  const { api, newBucket, stack } = t.context;
  const bucket = await newBucket();
  const disk = await diskOn(api, bucket, { writeBack: 'lazy' });
  await output(api, disk.id, 'true');
  await output(api, disk.id, 'mkdir d; for i in $(seq 20); do echo $i > d/$i; done');
  await stack.agent.stop('SIGKILL');
  await stack.startAgent();
  await waitFor('all files to be in the bucket', async () => (await bucket.keys()).length === 20);
  t.is(await textOf(bucket, 'd/20'), '20\n');
});

onEach(BOTH, 'searches, object requests and shared files have its contents', async (t, bucket) => {
  const { api, objects } = t.context;
  await bucket.put('logs/a', 'one needle\n');
  await bucket.put('logs/b', 'nothing\n');
  const disk = await diskOn(api, bucket);
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
  t.is(await textOf(bucket, 'put'), 'by the object API');
  t.is((await objects.call('DELETE', `/${disk.id}/logs/b`)).status, 204);
  t.is(await textOf(bucket, 'logs/b'), undefined);
  const { url } = await api.data<{ url: string }>('POST', `/api/disks/${disk.id}/share`, {
    key: 'logs/a',
  });
  t.is(await (await fetch(url)).text(), 'one needle\n');
});
