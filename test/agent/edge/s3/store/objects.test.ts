/* Objects as files of a mounted disk: every rule of single objects, on a real file system. */
import { createHash, randomBytes } from 'node:crypto';
import {
  chmod,
  chown,
  mkdir,
  open,
  readdir,
  readFile,
  rename,
  stat,
  symlink,
  truncate,
  writeFile,
} from 'node:fs/promises';
import { join, posix } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type TestFn } from 'ava';
import { getAttribute, setAttribute } from '../../../../../agent/disks/disk-calls.ts';
import { onBehalfOf } from '../../../../../agent/disks/disk-threads.ts';
import { Checksum } from '../../../../../agent/edge/s3/protocol/checksum.ts';
import { holdDirectory } from '../../../../../agent/edge/s3/store/held-directory.ts';
import type { ObjectInfo } from '../../../../../agent/edge/s3/store/object-info.ts';
import { TICK_MS } from '../../../../../agent/edge/s3/store/settled-file.ts';
import { run } from '../../../../../agent/system/spawn.ts';
import { EDGE_LIMITS } from '../../../../../agent/edge/limits.ts';
import {
  bodyOf,
  contentOf,
  mountDisk,
  type MountedDisk,
} from '../../../../helpers/mounted-disk.ts';
import { MiB, TiB } from '../../../../../shared/units.ts';

const test = anyTest as TestFn<{ disk: MountedDisk }>;
const plain = { attributes: {} };
const EMPTY = 'd41d8cd98f00b204e9800998ecf8427e';
const md5 = (bytes: Buffer | string): string => createHash('md5').update(bytes).digest('hex');

test.before(async (t) => {
  t.context.disk = await mountDisk();
});

test.after.always(async (t) => {
  t.deepEqual(await readdir(t.context.disk.layout.uploads), []);
  await t.context.disk[Symbol.asyncDispose]();
});

const put = (
  { store }: MountedDisk,
  key: string,
  content: string | Buffer = '',
  attributes = {},
): Promise<ObjectInfo> => store.put(key, bodyOf(content), { attributes });

async function* broken(): AsyncGenerator<Buffer> {
  yield Buffer.alloc(3 * MiB);
  throw new Error('the caller went away');
}

const refuse = (): never => {
  throw new Error('refused');
};

const onlyNew = (present: ObjectInfo | undefined): void => {
  if (present !== undefined) throw new Error('there is one');
};

test('an object is a file with the same bytes, and known again', async (t) => {
  const { disk } = t.context;
  for (const sizeBytes of [0, 1, 55, 56, 63, 64, 65, MiB - 1, 3 * MiB + 7]) {
    const content = randomBytes(sizeBytes);
    const key = `bytes/${sizeBytes}.bin`;
    const stored = await put(disk, key, content);
    t.is(stored.etag, md5(content));
    t.is(stored.sizeBytes, sizeBytes);
    t.deepEqual(await disk.store.head(key), stored);
    t.true((await readFile(join(disk.layout.contents, key))).equals(content));
    t.true((await contentOf(disk.store, key)).equals(content));
  }
});

test('a body of many tiny pieces, and one of 40 MiB', async (t) => {
  const { disk } = t.context;
  const tiny = randomBytes(5000);
  const { etag } = await disk.store.put('pieces/tiny', bodyOf(tiny, 1), plain);
  t.is(etag, md5(tiny));
  const large = randomBytes(40 * MiB);
  const stored = await disk.store.put('pieces/large', bodyOf(large, 65_521), plain);
  t.is(stored.etag, md5(large));
  t.is(md5(await contentOf(disk.store, 'pieces/large')), md5(large));
});

test('owner and mode: defaults, given, kept by what takes the place', async (t) => {
  const { disk } = t.context;
  const { mode, uid, gid } = await put(disk, 'owned/new', 'x');
  t.deepEqual([mode, uid, gid], [0o644, 0, 0]);
  const attributes = { mode: 0o4750, uid: 1000, gid: 2000 };
  const given = await put(disk, 'owned/deep/given', 'x', attributes);
  t.deepEqual([given.mode, given.uid, given.gid], [0o4750, 1000, 2000]);
  const parent = await stat(join(disk.layout.contents, 'owned/deep'));
  t.deepEqual([parent.mode & 0o7777, parent.uid, parent.gid], [0o755, 1000, 2000]);
  const above = await stat(join(disk.layout.contents, 'owned'));
  t.deepEqual([above.mode & 0o7777, above.uid], [0o755, 0]);
  const again = await put(disk, 'owned/deep/given', 'other');
  t.deepEqual([again.mode, again.uid, again.gid], [0o750, 1000, 2000]);
  const changed = await put(disk, 'owned/deep/given', 'third', { gid: 3 });
  t.deepEqual([changed.mode, changed.uid, changed.gid], [0o750, 1000, 3]);
});

const CAPABILITY = 'security.capability';
/** A vfs_cap_data of revision 2 (linux/capability.h): CAP_NET_ADMIN, permitted and effective. */
const NET_ADMIN = Buffer.from(`0100000200100000${'0'.repeat(24)}`, 'hex');

async function withFile<T>(path: string, work: (fd: number) => Promise<T>): Promise<T> {
  await using file = await open(path);
  return await work(file.fd);
}

test('new contents do not get the privileges of the former ones', async (t) => {
  const { disk } = t.context;
  const path = join(disk.layout.contents, 'privileged');
  const attributes = { mode: 0o7755, uid: 1000, gid: 2000 };
  const writes = [
    () => put(disk, 'privileged', 'other'),
    () => disk.store.append('privileged', Buffer.from('more'), {}),
  ];
  for (const write of writes) {
    t.is((await put(disk, 'privileged', 'x', attributes)).mode, 0o7755);
    await withFile(path, (fd) => setAttribute(fd, CAPABILITY, NET_ADMIN));
    await write();
    const { mode, uid, gid } = await disk.store.head('privileged');
    t.deepEqual([mode, uid, gid], [0o1755, 1000, 2000]);
    t.is(await withFile(path, (fd) => getAttribute(fd, CAPABILITY)), undefined);
  }
});

test('content types: given, guessed, and guessed again after a command changed the file', async (t) => {
  const { disk } = t.context;
  const cases = [
    ['types/a.json', undefined, 'application/json'],
    ['types/a.txt', undefined, 'text/plain; charset=utf-8'],
    ['types/json', undefined, 'application/octet-stream'],
    ['types/.html', undefined, 'application/octet-stream'],
    ['types/b.json', 'application/octet-stream', 'application/octet-stream'],
    ['types/c', `x/${'y'.repeat(253)}`, `x/${'y'.repeat(253)}`],
    ['types/d.txt', '', 'text/plain; charset=utf-8'],
  ] as const;
  for (const [key, contentType, expected] of cases) {
    const stored = await put(disk, key, 'x', contentType === undefined ? {} : { contentType });
    t.is(stored.contentType, expected, key);
    t.is((await disk.store.head(key)).contentType, expected, key);
  }
  const before = await disk.store.head('types/b.json');
  await writeFile(join(disk.layout.contents, 'types/b.json'), 'y');
  const after = await disk.store.head('types/b.json');
  t.is(after.contentType, 'application/json');
  t.not(after.etag, before.etag);
  t.regex(after.etag, /^[0-9a-f]{32}-0$/u);
  t.is((await disk.store.head('types/b.json')).etag, after.etag);
  for (const contentType of ['a\nb', 'a\rb', 'ü', 'x'.repeat(256)]) {
    await t.throwsAsync(put(disk, 'types/bad', 'x', { contentType }), { code: 'InvalidArgument' });
  }
});

test('what a command does to a file shows in its ETag, what it does to its name does not', async (t) => {
  const { disk } = t.context;
  const stored = await put(disk, 'touched', 'content');
  await chmod(join(disk.layout.contents, 'touched'), 0o600);
  await chown(join(disk.layout.contents, 'touched'), 5, 6);
  t.is((await disk.store.head('touched')).etag, stored.etag);
  await writeFile(join(disk.layout.contents, 'touched'), 'CONTENT');
  t.not((await disk.store.head('touched')).etag, stored.etag);
});

test('the ETag of a file of a command changes with every change, and with nothing else', async (t) => {
  const { store, layout } = t.context.disk;
  const path = join(layout.contents, 'written');
  const listed = async (): Promise<string | undefined> => {
    const { entries } = await store.list({ prefix: 'written', after: '', limit: 1 });
    return entries.map((entry) => ('etag' in entry ? entry.etag : ''))[0];
  };
  const seen = new Set<string>();
  for (let round = 0; round < 40; round += 1) {
    // Contents of one length, written within one tick of the kernel's clock.
    await writeFile(path, String(round % 10));
    const etag = round % 2 === 0 ? (await store.head('written')).etag : ((await listed()) ?? '');
    t.regex(etag, /^[0-9a-f]{32}-0$/u);
    t.false(seen.has(etag));
    seen.add(etag);
  }
  const { etag } = await store.head('written');
  t.true(seen.has(etag));
  t.is(await listed(), etag);
  t.is((await contentOf(store, 'written')).toString(), '9');
  t.is((await store.head('written')).etag, etag);
});

test('metadata stays with an object until a command changes its content', async (t) => {
  const { disk } = t.context;
  const kept = { contentType: 'x/y', headers: { 'x-amz-meta-a': 'b' } };
  const [from, to] = ['described', 'described-moved'];
  await put(disk, from, 'content', kept);
  await rename(join(disk.layout.contents, from), join(disk.layout.contents, to));
  await chmod(join(disk.layout.contents, to), 0o600);
  t.like(await disk.store.head(to), { ...kept, etag: md5('content') });
  await writeFile(join(disk.layout.contents, to), 'CONTENT');
  t.like(await disk.store.head(to), { contentType: 'application/octet-stream', headers: {} });
});

test('keys that cannot be files are refused, missing, and deleted', async (t) => {
  const { disk } = t.context;
  const long = `${'x'.repeat(254)}/`.repeat(5);
  const cases: [string, string][] = [
    ['', 'InvalidArgument'],
    ['/', 'InvalidArgument'],
    ['/a', 'InvalidArgument'],
    ['a//b', 'InvalidArgument'],
    ['a//', 'InvalidArgument'],
    ['.', 'InvalidArgument'],
    ['..', 'InvalidArgument'],
    ['../a', 'InvalidArgument'],
    ['a/../b', 'InvalidArgument'],
    ['a/./b', 'InvalidArgument'],
    ['a/..', 'InvalidArgument'],
    ['a/../', 'InvalidArgument'],
    ['a\0b', 'InvalidArgument'],
    ['a\uD800', 'InvalidArgument'],
    ['x'.repeat(256), 'KeyTooLongError'],
    [`a/${'ü'.repeat(128)}`, 'KeyTooLongError'],
    [long, 'KeyTooLongError'],
  ];
  for (const [key, code] of cases) {
    await t.throwsAsync(disk.store.put(key, bodyOf(''), plain), { code }, JSON.stringify(key));
    await t.throwsAsync(disk.store.head(key), { code: 'NoSuchKey' });
    await t.throwsAsync(disk.store.open(key), { code: 'NoSuchKey' });
    await t.notThrowsAsync(disk.store.delete(key));
    await t.throwsAsync(disk.store.append(key, Buffer.from('x'), {}), { code });
    await t.throwsAsync(disk.store.uploads.create(key, {}), { code });
  }
  const longest = Array.from({ length: 5 }, () => 'x'.repeat(204)).join('/');
  t.is(Buffer.byteLength(longest), 1024);
  t.is((await put(disk, longest, 'x')).sizeBytes, 1);
  t.is((await put(disk, `a/${'ü'.repeat(127)}x`, 'x')).sizeBytes, 1);
});

test('a longer path than a key to write is read, listed and deleted', async (t) => {
  const { disk } = t.context;
  const { store, layout } = disk;
  const names = Array.from({ length: 16 }, () => 'd'.repeat(250));
  const key = `deep/${names.join('/')}/file`;
  const parent = posix.dirname(key);
  // Step by step: the whole path on the host is longer than system calls take.
  const step = `for name in ${parent.split('/').join(' ')}; do mkdir -p $name && cd $name; done`;
  const write = `cd "$0" && ${step} && printf deep >file`;
  await run('/bin/sh', ['-c', write, layout.contents]);
  t.true(Buffer.byteLength(key) > 4000);
  t.is((await contentOf(store, key)).toString(), 'deep');
  t.is((await store.head(key)).sizeBytes, 4);
  const list = async () => (await store.list({ prefix: 'deep/', after: '', limit: 9 })).entries;
  t.like(await list(), [{ key, sizeBytes: 4 }]);
  await t.throwsAsync(put(disk, key, 'x'), { code: 'KeyTooLongError' });
  await store.delete(key);
  t.deepEqual(await list(), []);
});

test('a key with a slash at its end is a directory', async (t) => {
  const { disk } = t.context;
  const { store } = disk;
  await t.throwsAsync(store.head('made/'), { code: 'NoSuchKey' });
  const made = await put(disk, 'made/here/', '', { mode: 0o700, uid: 7 });
  t.like(made, { isDirectory: true, sizeBytes: 0, etag: EMPTY, mode: 0o700, uid: 7, gid: 0 });
  t.deepEqual(await store.head('made/here/'), made);
  t.like(await put(disk, 'made/here/', '', { mode: 0o777, uid: 8 }), { mode: 0o700, uid: 7 });
  t.like(await store.head('made/'), { mode: 0o755, uid: 7 });
  const opened = await store.open('made/here/');
  t.true(opened.isDirectory);
  await opened.close();
  for (const key of ['made', 'made/here']) {
    await t.throwsAsync(store.head(key), { code: 'NoSuchKey' });
    await t.throwsAsync(store.open(key), { code: 'NoSuchKey' });
    await t.throwsAsync(put(disk, key, 'x'), { code: 'OperationAborted' });
    await t.throwsAsync(store.append(key, Buffer.from('x'), {}), { code: 'OperationAborted' });
  }
  await t.throwsAsync(put(disk, 'made/bytes/', 'x'), { code: 'InvalidArgument' });
  await t.throwsAsync(store.append('made/', Buffer.from('x'), {}), { code: 'InvalidArgument' });
  await t.throwsAsync(store.uploads.create('made/', {}), { code: 'InvalidArgument' });
  await store.delete('made/');
  t.true((await store.head('made/')).isDirectory);
  await store.delete('made');
  t.true((await store.head('made/')).isDirectory);
  await store.delete('made/here/');
  await store.delete('made/');
  await t.throwsAsync(store.head('made/'), { code: 'NoSuchKey' });
});

test('a directory keeps what it was put with until it is put anew or deleted', async (t) => {
  const { disk } = t.context;
  const { store, layout } = disk;
  const path = join(layout.contents, 'marked.txt');
  const kept = { contentType: 'text/plain; charset=utf-8', headers: { 'x-amz-meta-mode': '0' } };
  const bare = { contentType: 'application/x-directory', headers: {}, checksum: undefined };
  const putKept = () =>
    store.put('marked.txt/', bodyOf(''), { attributes: kept, checksum: new Checksum('crc32') });
  const listed = async () =>
    (await store.list({ prefix: 'marked.txt/', delimiter: '/', after: '', limit: 1 })).entries;
  const made = await putKept();
  t.like(made, { ...kept, checksum: { algorithm: 'crc32', value: 'AAAAAA==' } });
  t.deepEqual(await store.head('marked.txt/'), made);
  t.like(await listed(), [{ key: 'marked.txt/', checksum: { algorithm: 'crc32' } }]);
  await put(disk, 'marked.txt/file', 'x');
  t.like(await store.head('marked.txt/'), kept);
  t.like(await put(disk, 'marked.txt/'), bare);
  t.like(await store.head('marked.txt/'), bare);

  await putKept();
  await store.delete('marked.txt/');
  t.like(await store.head('marked.txt/'), bare);
  t.like(await listed(), [{ key: 'marked.txt/file' }]);

  // The mark of an earlier version.
  await using directory = await holdDirectory(path, '');
  await setAttribute(directory.fd, 'trusted.berth.key', Buffer.of(1));
  t.like(await store.head('marked.txt/'), bare);
  t.like(await listed(), [{ key: 'marked.txt/' }]);
  t.like(await putKept(), kept);
});

test('a file is no directory', async (t) => {
  const { disk } = t.context;
  await put(disk, 'file', 'x');
  for (const key of ['file/', 'file/below', 'file/below/deep/']) {
    await t.throwsAsync(put(disk, key), { code: 'OperationAborted' });
    await t.throwsAsync(disk.store.head(key), { code: 'NoSuchKey' });
    await t.notThrowsAsync(disk.store.delete(key));
  }
  t.is((await disk.store.head('file')).sizeBytes, 1);
});

test('deleting removes the file and nothing around it', async (t) => {
  const { disk } = t.context;
  await put(disk, 'gone/deep/file', 'x');
  await disk.store.delete('gone/deep/file');
  await disk.store.delete('gone/deep/file');
  await disk.store.delete('gone/never/was');
  await t.throwsAsync(disk.store.head('gone/deep/file'), { code: 'NoSuchKey' });
  t.deepEqual(await readdir(join(disk.layout.contents, 'gone/deep')), []);
});

test('a body that is refused leaves the former object and nothing else', async (t) => {
  const { disk } = t.context;
  await put(disk, 'former', 'former');
  const { store } = disk;
  const message = /went away|refused/u;
  await t.throwsAsync(store.put('former', broken(), plain), { message });
  await t.throwsAsync(store.put('former', bodyOf('x'), { ...plain, verify: refuse }), { message });
  await t.throwsAsync(store.put('never/made', bodyOf('x'), { ...plain, verify: refuse }));
  const options = { ...plain, precondition: refuse };
  await t.throwsAsync(store.put('former', bodyOf('x'), options), { message });
  await t.throwsAsync(store.put('never/made', bodyOf('x'), options), { message });
  t.is(String(await contentOf(store, 'former')), 'former');
  t.false((await readdir(disk.layout.contents)).includes('never'));
});

test('preconditions see the object that is there, and hold until it is exchanged', async (t) => {
  const { disk } = t.context;
  const seen: (string | undefined)[] = [];
  const precondition = (present: ObjectInfo | undefined): void => {
    seen.push(present?.etag);
  };
  await disk.store.put('guarded', bodyOf('one'), { ...plain, precondition });
  await disk.store.put('guarded', bodyOf('two'), { ...plain, precondition });
  t.deepEqual(seen, [undefined, md5('one')]);
  const attempts = Array.from({ length: 8 }, (_, index) =>
    disk.store.put('raced', bodyOf(String(index)), { ...plain, precondition: onlyNew }),
  );
  const ended = await Promise.allSettled(attempts);
  t.is(ended.filter(({ status }) => status === 'fulfilled').length, 1);
});

test('puts of one key at once all succeed, and one of them stays whole', async (t) => {
  const { disk } = t.context;
  const contents = Array.from({ length: 6 }, () => randomBytes(2 * MiB));
  const stored = await Promise.all(contents.map((bytes) => put(disk, 'contended', bytes)));
  t.deepEqual(
    stored.map(({ etag }) => etag),
    contents.map(md5),
  );
  const left = await contentOf(disk.store, 'contended');
  t.true(contents.some((bytes) => bytes.equals(left)));
  t.is((await disk.store.head('contended')).etag, md5(left));
});

test('an open object stays what it was', async (t) => {
  const { disk } = t.context;
  await put(disk, 'held', 'before');
  const opened = await disk.store.open('held');
  await put(disk, 'held', 'after!');
  t.is(await readFile(`/proc/self/fd/${opened.fd}`, 'utf8'), 'before');
  await opened.close();
});

const settle = (): Promise<void> => sleep(2 * TICK_MS);

test('a small object is read by the call that opens it, unless it is too young or too large', async (t) => {
  const { store, layout } = t.context.disk;
  const path = join(layout.contents, 'at-once');
  const contentMax = 1000;
  const contentAtOnce = async (): Promise<string | undefined> => {
    const found = await store.readOrOpen('at-once', contentMax);
    if ('content' in found) return found.content.toString();
    await found.close();
    return undefined;
  };
  await writeFile(path, 'one');
  t.not(await contentAtOnce(), 'two'); // Perhaps still too young.
  await settle();
  t.is(await contentAtOnce(), 'one');
  await writeFile(path, 'two');
  await settle();
  t.is(await contentAtOnce(), 'two');
  await truncate(path, 0);
  await settle();
  t.is(await contentAtOnce(), '');
  await writeFile(path, 'x'.repeat(contentMax));
  await settle();
  t.is((await contentAtOnce())?.length, contentMax);
  await truncate(path, contentMax + 1);
  await settle();
  t.is(await contentAtOnce(), undefined);
});

test('what is served is never older than its ETag, though commands write as fast as they can', async (t) => {
  const { store, layout } = t.context.disk;
  const path = join(layout.contents, 'fast');
  await writeFile(path, '0000');
  const seen = new Map<string, string>();
  const done = new AbortController();
  const writing = (async () => {
    for (let count = 0; !done.signal.aborted; count += 1) {
      await writeFile(path, String(count % 10_000).padStart(4, '0'), { flag: 'r+' });
      if (count % 5 === 0) await sleep(TICK_MS * 2);
    }
  })();
  for (let round = 0; round < 150; round += 1) {
    const found = await store.readOrOpen('fast', 100);
    if ('close' in found) await found.close();
    if (!('content' in found)) continue;
    const { content, etag } = found;
    const known = seen.get(etag);
    t.true(known === undefined || known === content.toString(), `${etag} had two contents`);
    seen.set(etag, content.toString());
  }
  done.abort();
  await writing;
});

test('appending makes, extends, and has the ETag of the whole', async (t) => {
  const { disk } = t.context;
  const { store } = disk;
  const attributes = { mode: 0o600, uid: 9, contentType: 'x/y' };
  let content = Buffer.alloc(0);
  for (const sizeBytes of [3, 0, 64, 1, MiB, 61]) {
    const piece = randomBytes(sizeBytes);
    content = Buffer.concat([content, piece]);
    const info = await store.append('log', piece, attributes);
    t.like(info, { etag: md5(content), mode: 0o600, uid: 9, contentType: 'x/y' });
    t.is(info.sizeBytes, content.length);
    t.deepEqual(await store.head('log'), info);
  }
  t.true((await contentOf(store, 'log')).equals(content));
  await writeFile(join(disk.layout.contents, 'log'), 'by a command');
  t.is((await store.append('log', Buffer.from('!'), {})).etag, md5('by a command!'));
  await put(disk, 'log', 'put');
  t.is((await store.append('log', Buffer.from('+'), { mode: 0o777 })).etag, md5('put+'));
  t.is((await store.head('log')).mode, 0o600);
});

test('appending to a file of 15 TiB reads none of it', async (t) => {
  const { store, layout } = t.context.disk;
  const path = join(layout.contents, 'sparse');
  await put(t.context.disk, 'sparse', 'x', { contentType: 'x/y' });
  await truncate(path, 15 * TiB);
  const first = await store.append('sparse', Buffer.from('!'), {});
  t.is(first.sizeBytes, 15 * TiB + 1);
  t.regex(first.etag, /^[0-9a-f]{32}-0$/u);
  t.deepEqual(await store.head('sparse'), first);
  const second = await store.append('sparse', Buffer.from('!'), {});
  t.not(second.etag, first.etag);
  t.deepEqual(await store.head('sparse'), second);
  const [listed] = (await store.list({ prefix: 'sparse', after: '', limit: 1 })).entries;
  t.like(listed, { etag: second.etag });
  await truncate(path, 15 * TiB);
  t.not((await store.head('sparse')).etag, second.etag);
  await store.delete('sparse');
});

test('an object too long to be read keeps type and headers when it is appended to', async (t) => {
  const { disk } = t.context;
  const attributes = { contentType: 'x/y', headers: { 'x-amz-meta-a': 'b' } };
  const body = Buffer.alloc(EDGE_LIMITS.appendHashedBytesMax + 1);
  await put(disk, 'long', body, attributes);
  const info = await disk.store.append('long', Buffer.from('!'), {});
  t.like(info, { ...attributes, sizeBytes: body.length + 1 });
  t.regex(info.etag, /-0$/u);
  await disk.store.delete('long');
});

test('work ends when its signal is aborted, and what was begun is cleared away', async (t) => {
  await using disk = await mountDisk(64 * MiB);
  const { store, layout } = disk;
  const ended = new AbortController();
  const reason = new Error('the caller is gone');
  let sent = 0;
  async function* endless(): AsyncGenerator<Buffer> {
    for (; sent < 1000; sent += 1) {
      if (sent === 4) ended.abort(reason);
      yield Buffer.alloc(MiB);
    }
  }
  const work = onBehalfOf('account', ended.signal, () => store.put('endless', endless(), plain));
  t.is(await t.throwsAsync(work), reason);
  t.true(sent < 10);
  t.deepEqual(await readdir(layout.uploads), []);
  const listing = onBehalfOf('account', ended.signal, () =>
    store.list({ prefix: '', after: '', limit: 1 }),
  );
  t.is(await t.throwsAsync(listing), reason);
  await t.throwsAsync(store.head('endless'), { code: 'NoSuchKey' });
});

test('appends at once lose nothing', async (t) => {
  const { disk } = t.context;
  const pieces = Array.from({ length: 20 }, (_, index) => `piece ${index};`);
  await Promise.all(pieces.map((piece) => disk.store.append('many', Buffer.from(piece), {})));
  const content = String(await contentOf(disk.store, 'many'));
  for (const piece of pieces) t.true(content.includes(piece), piece);
  t.is((await disk.store.head('many')).etag, md5(content));
});

test('a link inside the disk is read through, replaced by a put, and itself deleted', async (t) => {
  const { disk } = t.context;
  const { contents } = disk.layout;
  await mkdir(join(contents, 'real'));
  await put(disk, 'real/file', 'target');
  await symlink('real/file', join(contents, 'link'));
  await symlink('real', join(contents, 'linked'));
  t.is(String(await contentOf(disk.store, 'link')), 'target');
  t.is(String(await contentOf(disk.store, 'linked/file')), 'target');
  await put(disk, 'linked/other', 'through');
  t.is(await readFile(join(contents, 'real/other'), 'utf8'), 'through');
  await put(disk, 'link', 'replaced');
  t.is(await readFile(join(contents, 'real/file'), 'utf8'), 'target');
  await disk.store.delete('linked/');
  await disk.store.delete('linked');
  t.true((await readdir(contents)).includes('real'));
  t.false((await readdir(contents)).includes('linked'));
});
