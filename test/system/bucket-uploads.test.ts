/* Uploads that a bucket refuses, loses the answer of, or has in part only. */
import { bucketTest, diskOn, lookAtBucket, output, textOf } from '../helpers/bucket-stack.ts';
import type { BucketFront } from '../helpers/bucket-front.ts';
import { readMount } from '../helpers/buckets.ts';
import { MiB } from '../../shared/units.ts';
import { waitFor } from '../helpers/wait.ts';

const KINDS = ['s3rver', 'Azurite'] as const;

const { test, onEach } = bucketTest(KINDS, { BUCKET_SETTLE_MS: '15000' });

const isWrite = (method: string): boolean => method === 'PUT' || method === 'POST';

/** Has the front do this to so many writes of keys that have this in their names. */
function spoil(
  front: BucketFront,
  name: string,
  fate: 'lose' | 'cut',
  times: number,
): () => number {
  let spoiled = 0;
  front.rule = ({ method, url }) => {
    // Parts and blocks are taken, what ends an upload is not.
    const isPart = /partNumber=|comp=block&|comp=block$|[?&]uploads/u.test(url);
    if (!isWrite(method) || !url.includes(name) || isPart || spoiled === times) return 'pass';
    spoiled += 1;
    return fate;
  };
  return () => spoiled;
}

onEach(KINDS, 'a file that is refused holds up no other, and is told', async (t, bucket, name) => {
  const { api } = t.context;
  await using front = await t.context.frontOf(bucket, name);
  const disk = await diskOn(api, bucket, {}, front.url);
  await output(api, disk.id, 'echo 0 > moving');
  front.rule = ({ method, url }) => (isWrite(method) && url.includes('secret') ? 'deny' : 'pass');
  const files = 'for i in $(seq 40); do echo $i > f$i; done; echo 1 > secret';
  const path = `/api/disks/${disk.id}/exec`;
  const reply = await api.call('POST', path, { command: `${files}; mv moving secret-place` });
  t.is(reply.status, 500);
  t.is(reply.body.code, 'outcome_unknown');
  t.regex(reply.body.error, /does not take secret\S* and 1 more: .*do not allow this/u);
  t.is((await bucket.keys()).length, 41);
  t.is(await textOf(bucket, 'moving'), '0\n', 'its only copy in the bucket went');
  const { connectionStatus, problems, problemCount } = await readMount(api, disk.id);
  t.is(connectionStatus, 'connected');
  t.is(problemCount, 2);
  t.deepEqual(problems.map(({ key }) => key).sort(), ['secret', 'secret-place']);
  t.regex(problems[0]?.reason ?? '', /not uploaded/u);
  // The command that did not write the file does not hear of it.
  t.is(await output(api, disk.id, 'echo 2 > taken; cat secret secret-place'), '1\n0\n');
  t.is(await textOf(bucket, 'taken'), '2\n');
  front.rule = () => 'pass';
  await waitFor('the files to be uploaded', async () => {
    return (await readMount(api, disk.id)).problemCount === 0;
  });
  t.is(await textOf(bucket, 'secret'), '1\n');
  t.is(await textOf(bucket, 'secret-place'), '0\n');
  await waitFor(
    'the former name to go',
    async () => (await textOf(bucket, 'moving')) === undefined,
  );
});

onEach(KINDS, 'an upload whose answer was lost is known again', async (t, bucket, name) => {
  const { api } = t.context;
  await using front = await t.context.frontOf(bucket, name);
  await bucket.put('placed', 'theirs');
  const disk = await diskOn(api, bucket, {}, front.url);
  await output(api, disk.id, 'echo old > lost-small; mkdir d');
  const spoiled = spoil(front, 'lost', 'lose', 12);
  const make =
    'head -c 9000000 /dev/zero > lost-large; echo new > lost-small; mv placed lost-moved';
  await output(api, disk.id, `${make}; echo 1 > d/lost-new`);
  t.true(spoiled() >= 4);
  front.rule = () => 'pass';
  const keys = ['d/lost-new', 'lost-large', 'lost-moved', 'lost-small'];
  t.deepEqual(await bucket.keys(), keys);
  t.is((await bucket.get('lost-large'))?.length, 9_000_000);
  t.is(await textOf(bucket, 'lost-small'), 'new\n');
  t.is(await textOf(bucket, 'lost-moved'), 'theirs');
  await lookAtBucket(api, disk.id, bucket);
  await output(api, disk.id, 'echo more >> lost-large');
  t.is((await bucket.get('lost-large'))?.length, 9_000_005);
  t.is((await readMount(api, disk.id)).problemCount, 0);
});

// s3rver keeps what has arrived of an object.
onEach(
  ['a Berth disk', 'Azurite'],
  'an upload that is cut off is made again',
  async (t, bucket, name) => {
    const { api } = t.context;
    await using front = await t.context.frontOf(bucket, name);
    const disk = await diskOn(api, bucket, {}, front.url);
    const spoiled = spoil(front, 'cut', 'cut', 7);
    const sum = await output(
      api,
      disk.id,
      'head -c 5000000 /dev/urandom > cut-1; seq 9000 > cut-2; cat cut-1 cut-2 | sha256sum',
    );
    t.is(spoiled(), 7);
    t.deepEqual(await bucket.keys(), ['cut-1', 'cut-2']);
    const other = await diskOn(api, bucket);
    t.is(await output(api, other.id, 'cat cut-1 cut-2 | sha256sum'), sum);
  },
);

onEach(KINDS, 'a slow bucket is waited for', async (t, bucket, name) => {
  const { api } = t.context;
  await using front = await t.context.frontOf(bucket, name);
  await bucket.put('theirs', 'here');
  const disk = await diskOn(api, bucket, {}, front.url);
  front.rule = () => 'slow';
  t.is(await output(api, disk.id, 'cat theirs; for i in $(seq 20); do echo $i > $i; done'), 'here');
  t.is(await textOf(bucket, '20'), '20\n');
});

test('a file that is filled while the disk is compared with its bucket is not uploaded', async (t) => {
  const { api, newBucket, frontOf } = t.context;
  const bucket = await newBucket('s3rver');
  await using front = await frontOf(bucket, 's3rver');
  await bucket.put('large', 'x'.repeat(6 * MiB));
  const disk = await diskOn(api, bucket, {}, front.url);
  const { promise, resolve } = Promise.withResolvers<void>();
  front.held = promise;
  const asked: string[] = [];
  front.rule = ({ method, url }) => {
    if (url.includes('large')) asked.push(method);
    return 'pass';
  };
  const times = 'stat -c %y large'; // A placeholder has the time of its object.
  const before = await output(api, disk.id, times);
  const reading = output(api, disk.id, 'wc -c < large');
  await waitFor('a part to be written', async () => {
    return (await output(api, disk.id, `${times}; echo 1 >> other`)) !== before;
  });
  resolve();
  t.is(await reading, `${6 * MiB}\n`);
  await output(api, disk.id, 'echo 2 > other');
  t.deepEqual(asked, ['GET']);
  t.is(await output(api, disk.id, times), before);
});

test('an object that is replaced without a condition is not fetched first', async (t) => {
  const { api, newBucket, frontOf, objects } = t.context;
  const bucket = await newBucket('s3rver');
  await using front = await frontOf(bucket, 's3rver');
  for (const key of ['put', 'copied', 'parts', 'judged']) await bucket.put(key, 'theirs');
  const disk = await diskOn(api, bucket, {}, front.url);
  await output(api, disk.id, 'echo mine > own');
  const fetched: string[] = [];
  front.rule = ({ method, url }) => {
    const [, key] = /\/(put|copied|parts|judged)(?:\?|$)/u.exec(url) ?? [];
    if (method === 'GET' && key !== undefined) fetched.push(key);
    return 'pass';
  };
  t.is((await objects.put(disk.id, 'put', 'mine')).status, 200);
  const source = { 'x-amz-copy-source': `/${disk.id}/own` };
  t.is((await objects.put(disk.id, 'copied', '', source)).status, 200);
  const begun = await objects.call('POST', `/${disk.id}/parts?uploads`);
  const [, uploadId = ''] = /<UploadId>([^<]+)</u.exec(begun.text) ?? [];
  const place = `/${disk.id}/parts?uploadId=${uploadId}`;
  const part = await objects.call('PUT', `${place}&partNumber=1`, { body: 'mine' });
  const named = `<PartNumber>1</PartNumber><ETag>${part.headers.get('etag')}</ETag>`;
  const body = `<CompleteMultipartUpload><Part>${named}</Part></CompleteMultipartUpload>`;
  t.is((await objects.call('POST', place, { body })).status, 200);
  t.deepEqual(fetched, []);
  t.is((await objects.put(disk.id, 'judged', 'mine', { 'if-none-match': '*' })).status, 412);
  t.deepEqual(fetched, ['judged']);
  for (const key of ['put', 'parts']) t.is(await textOf(bucket, key), 'mine');
});

test.serial('what a file was uploaded as is known after the agent was killed, too', async (t) => {
  const { api, newBucket, frontOf, stack } = t.context;
  const bucket = await newBucket('Azurite');
  await using front = await frontOf(bucket, 'Azurite');
  const disk = await diskOn(api, bucket, { writeBack: 'lazy' }, front.url);
  await output(api, disk.id, 'true');
  const spoiled = spoil(front, 'lost', 'lose', Infinity);
  await output(api, disk.id, 'head -c 9000000 /dev/zero > lost-large; echo 1 > lost-removed');
  await waitFor('the uploads to lose their answers', async () => {
    return spoiled() > 0 && (await bucket.keys()).length === 2;
  });
  await stack.agent.stop('SIGKILL');
  front.rule = () => 'pass';
  await stack.startAgent();
  await output(api, disk.id, 'rm lost-removed; echo end >> lost-large; echo 1 > after');
  await waitFor('the files to be uploaded', async () => {
    return (await bucket.get('lost-large'))?.length === 9_000_004;
  });
  await waitFor('the removal', async () => (await textOf(bucket, 'lost-removed')) === undefined);
  t.is(await output(api, disk.id, 'ls'), 'after\nlost-large\n');
  t.deepEqual(await bucket.keys(), ['after', 'lost-large']);
  t.is((await readMount(api, disk.id)).problemCount, 0);
});

test('an older check does not replace what the use of the bucket showed', async (t) => {
  const { api, newBucket, frontOf } = t.context;
  const bucket = await newBucket('s3rver');
  await using front = await frontOf(bucket, 's3rver');
  await bucket.put('f', 'here');
  front.rule = () => 'deny';
  const disk = await diskOn(api, bucket, {}, front.url);
  t.like(disk.mounts[0], { connectionStatus: 'error' });
  const { promise, resolve } = Promise.withResolvers<'deny'>();
  let held = 0;
  front.rule = () => (held++ === 0 ? promise : 'pass');
  await waitFor('the next check', async () => held === 1);
  t.is(await output(api, disk.id, 'cat f'), 'here');
  await waitFor('the bucket to be shown as connected', async () => {
    return (await readMount(api, disk.id)).connectionStatus === 'connected';
  });
  resolve('deny');
  await output(api, disk.id, 'echo 1 > g');
  t.like(await readMount(api, disk.id), { connectionStatus: 'connected' });
});
