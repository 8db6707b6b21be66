/* A disk and its bucket, without an agent around them: what becomes of files on the way. */
import { appendFile, open, readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import type { ObjectInfo } from '../../../../agent/edge/s3/store/object-info.ts';
import type { ObjectStore } from '../../../../agent/edge/s3/store/object-store.ts';
import { MiB } from '../../../../shared/units.ts';
import { startS3rver } from '../../../helpers/bucket-servers.ts';
import { bodyOf } from '../../../helpers/mounted-disk.ts';
import { type OpenedBucketDisk, openBucketDisk } from '../../../helpers/opened-bucket-disk.ts';
import { waitFor } from '../../../helpers/wait.ts';

const server = await startS3rver();
test.after.always(() => server[Symbol.asyncDispose]());

/** Makes the disk so full that the file becomes a placeholder, and then less full again. */
async function giveUp(opened: OpenedBucketDisk, path: string): Promise<void> {
  const { layout, mount, sh } = opened;
  const left = `$(($(stat -f -c '%a * %S' ${mount}) - ${5 * MiB}))`;
  await sh(`fallocate -l ${left} ${mount}/ballast`);
  await waitFor('the file to be given up', async () => {
    const { blocks, blksize } = await stat(join(layout.contents, path));
    return blocks <= blksize / 512; // Its attributes may need one.
  });
  await sh(`rm ${mount}/ballast`);
}

async function head(store: ObjectStore, key: string): Promise<ObjectInfo> {
  const { fd: _, close, ...info } = await store.open(key);
  await close();
  return info;
}

const upload = async (t: ExecutionContext, { disk }: OpenedBucketDisk): Promise<void> => {
  t.true(await disk.trySettle());
};

test('an object that was given up comes back with all that it had', async (t) => {
  await using opened = await openBucketDisk(server);
  const { store, front } = opened;
  const headers = { 'x-amz-meta-color': 'blue' };
  const attributes = { contentType: 'text/x-own', headers };
  const body = 'x'.repeat(6 * MiB);
  await store.put('given-up', bodyOf(body), { attributes });
  const before = await head(store, 'given-up');
  t.like(before, { contentType: 'text/x-own', headers });
  await upload(t, opened);
  await giveUp(opened, 'given-up');
  // The first agent ends when it has fetched and seen a part of the file.
  const { promise, resolve } = Promise.withResolvers<void>();
  front.held = promise;
  const reading = opened.sh('wc -c < given-up');
  const file = join(opened.layout.contents, 'given-up');
  await waitFor('a part to be written', async () => {
    return (await stat(file)).mtimeMs !== before.modifiedAt.getTime();
  });
  await upload(t, opened);
  front.held = undefined;
  await opened.attachAgain();
  resolve();
  t.is(await reading, `${body.length}\n`);
  t.deepEqual(await head(store, 'given-up'), before);
  await upload(t, opened);
  t.deepEqual(await head(store, 'given-up'), before);
});

const replacedIn = ({ mount }: OpenedBucketDisk): Promise<string[]> =>
  readdir(join(mount, 'bucket/replaced'));

test('what is written to a replaced file comes back, also after another agent has begun', async (t) => {
  await using opened = await openBucketDisk(server, (bucket) => bucket.put('f', 'old'));
  await using writer = await open(join(opened.layout.contents, 'f'), 'r+');
  await opened.bucket.put('f', 'theirs');
  await opened.look();
  t.is(await opened.sh('cat f'), 'theirs');
  await opened.attachAgain();
  await writer.write('mine');
  await writer.datasync();
  await upload(t, opened);
  t.is(await opened.sh('cat recovered-*'), 'mine');
  const keys = await opened.bucket.keys();
  t.regex(keys.join(' '), /^f recovered-\S+$/u);
});

test('a replaced file goes once nobody has it open, while the disk is attached', async (t) => {
  await using opened = await openBucketDisk(server, (bucket) => bucket.put('f', 'old'));
  const reader = await open(join(opened.layout.contents, 'f'), 'r');
  try {
    await opened.bucket.put('f', 'theirs');
    await opened.look();
    await upload(t, opened);
    t.is((await replacedIn(opened)).length, 1);
    t.is(await reader.readFile('utf8'), 'old');
  } finally {
    await reader.close();
  }
  await upload(t, opened);
  t.deepEqual(await replacedIn(opened), []);
  t.is(await opened.sh('ls; cat f'), 'f\ntheirs');
});

test('a disk that is full is attached, however many old lines its index has', async (t) => {
  await using opened = await openBucketDisk(server, (bucket) => bucket.put('f', 'here'));
  const { mount, sh } = opened;
  t.is(await sh('cat f'), 'here');
  await appendFile(join(mount, 'bucket/index'), '["gone"]\n'.repeat(12_000));
  await sh(`dd if=/dev/zero of=${mount}/ballast bs=4k 2> /dev/null || true`);
  await opened.attachAgain();
  t.false((await readdir(join(mount, 'bucket'))).includes('index.next'));
  await sh(`rm ${mount}/ballast`);
  t.is(await sh('echo 1 > g; cat f'), 'here');
  await upload(t, opened);
  t.deepEqual(await opened.bucket.keys(), ['f', 'g']);
});

test('many files that were cut before anybody opened them are fetched and uploaded', async (t) => {
  // Each open waits for its fetch, which needs threads as well.
  const names = Array.from({ length: 24 }, (_, number) => `file-${number}`);
  await using opened = await openBucketDisk(server, async (bucket) => {
    for (const name of names) await bucket.put(name, 'whole');
  });
  const { bucket, sh } = opened;
  await sh(`perl -e 'truncate($_, 3) or die $! for @ARGV' ${names.join(' ')}`);
  await upload(t, opened);
  for (const name of names) t.is(String(await bucket.get(name)), 'who');
});

test('what waits to be written to a file is not lost when others change its object', async (t) => {
  await using opened = await openBucketDisk(server, (bucket) => bucket.put('f', 'old '));
  const { bucket, front, sh } = opened;
  const { promise, resolve } = Promise.withResolvers<'pass'>();
  let fetches = 0;
  front.rule = ({ method, url }) => {
    const isFetch = method === 'GET' && /\/f(?:\?|$)/u.test(url);
    fetches += Number(isFetch);
    return isFetch ? promise : 'pass';
  };
  const writing = sh('printf mine >> f');
  await waitFor('the object to be fetched', async () => fetches > 0);
  await bucket.put('f', 'theirs ');
  await opened.look();
  resolve('pass');
  await writing;
  await upload(t, opened);
  t.is(await sh('cat f'), 'theirs mine');
  t.is((await bucket.get('f'))?.toString(), 'theirs mine');
});

test('a moved file whose fetch breaks off is not filled from its former name', async (t) => {
  const large = 'x'.repeat(6 * MiB);
  await using opened = await openBucketDisk(server, (bucket) => bucket.put('log', large));
  const { bucket, front, sh, layout } = opened;
  await sh('mv log log.1 && printf new > log');
  const { promise, reject } = Promise.withResolvers<void>();
  front.held = promise;
  const reading = sh('wc -c < log.1');
  await waitFor('a part to be written', async () => {
    return (await stat(join(layout.contents, 'log.1'))).blocks > MiB / 512;
  });
  await upload(t, opened);
  t.is(String(await bucket.get('log')), 'new');
  front.held = undefined;
  reject(new Error('the connection breaks'));
  t.is(await reading, `${large.length}\n`);
  await upload(t, opened);
  t.is((await bucket.get('log.1'))?.length, large.length);
});

test('a moved file that nobody has opened is kept when its former name is written to', async (t) => {
  const names = ['log', 'log.1', 'log.2', 'a', 'b', 'far'];
  await using opened = await openBucketDisk(server, async (bucket) => {
    for (const name of names) await bucket.put(name, `was ${name}`);
  });
  const { bucket, front, sh } = opened;
  // The copies take longer than what would destroy their sources.
  front.rule = ({ method, url }) =>
    method === 'PUT' && /\/log\.[12]/u.test(url) ? 'slow' : 'pass';
  const deep = Array.from({ length: 6 }, () => 'd'.repeat(200)).join('/'); // Too long for a key.
  await sh(`mv log.1 log.2 && mv log log.1 && printf new > log && mv a t && mv b a && mv t b`);
  await sh(`mkdir -p ${deep} && mv far ${deep}/far && printf new > far`);
  await upload(t, opened);
  const expected = ['new', 'was log', 'was log.1', 'was b', 'was a', 'new'];
  const texts = await Promise.all(names.map(async (name) => String(await bucket.get(name))));
  t.deepEqual(texts, expected);
  t.is(await sh(`cat ${names.join(' ')} ${deep}/far`), `${expected.join('')}was far`);
  t.deepEqual(await bucket.keys(), names.toSorted());
});
