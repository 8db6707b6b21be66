/* Objects uploaded in parts, on a real file system. */
import { createHash, hash, randomBytes } from 'node:crypto';
import { readdir, rename, stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { clearUploads } from '../../../../../agent/edge/s3/store/clear-uploads.ts';
import type { PartRef } from '../../../../../agent/edge/s3/store/choose-parts.ts';
import { ObjectStore } from '../../../../../agent/edge/s3/store/object-store.ts';
import { bodyOf, contentOf, mountDisk } from '../../../../helpers/mounted-disk.ts';
import { MiB } from '../../../../../shared/units.ts';

const md5 = (bytes: Buffer | string): string => createHash('md5').update(bytes).digest('hex');
const md5OfMd5s = (parts: readonly Buffer[]): string =>
  `${md5(Buffer.concat(parts.map((part) => createHash('md5').update(part).digest())))}-${parts.length}`;

const refuse = (): never => {
  throw new Error('refused');
};

async function putParts(
  { uploads }: ObjectStore,
  uploadId: string,
  key: string,
  contents: readonly Buffer[],
): Promise<PartRef[]> {
  return Promise.all(
    contents.map(async (content, index) => {
      const partNumber = index + 1;
      const { etag } = await uploads.putPart(uploadId, key, partNumber, bodyOf(content));
      return { partNumber, etag };
    }),
  );
}

test('parts become one object with the attributes of its creation', async (t) => {
  await using disk = await mountDisk();
  const { store } = disk;
  const contents = [randomBytes(5 * MiB), randomBytes(5 * MiB + 3), randomBytes(100)];
  const attributes = { mode: 0o640, uid: 12, gid: 13, contentType: 'x/y' };
  const id = await store.uploads.create('in/parts', attributes);
  t.regex(id, /^[0-9a-f]{11}-[0-9a-f]{32}$/u);
  const parts = await putParts(store, id, 'in/parts', contents);
  t.deepEqual(
    parts.map(({ etag }) => etag),
    contents.map(md5),
  );
  await t.throwsAsync(store.head('in/parts'), { code: 'NoSuchKey' });
  t.deepEqual(await readdir(disk.layout.contents), []);
  const info = await store.uploads.complete(id, 'in/parts', parts);
  t.like(info, { ...attributes, etag: md5OfMd5s(contents), sizeBytes: 10 * MiB + 103 });
  t.deepEqual(await store.head('in/parts'), info);
  t.true((await contentOf(store, 'in/parts')).equals(Buffer.concat(contents)));
  t.deepEqual(await readdir(disk.layout.uploads), [`done-${id}`]);
});

test('completing again answers the same; other parts or an unknown upload do not', async (t) => {
  await using disk = await mountDisk();
  const { uploads } = disk.store;
  const id = await uploads.create('again', {});
  const parts = await putParts(disk.store, id, 'again', [Buffer.from('only')]);
  const info = await uploads.complete(id, 'again', parts);
  t.is(info.etag, md5OfMd5s([Buffer.from('only')]));
  t.deepEqual(await uploads.complete(id, 'again', parts), info);
  await disk.reattach();
  t.deepEqual(await new ObjectStore(disk.layout).uploads.complete(id, 'again', parts), info);
  const others = [{ partNumber: 2, etag: md5('x') }];
  await t.throwsAsync(uploads.complete(id, 'again', others), { code: 'NoSuchUpload' });
  await t.throwsAsync(uploads.complete(id, 'other', parts), { code: 'NoSuchUpload' });
  await t.throwsAsync(uploads.abort(id, 'again'), { code: 'NoSuchUpload' });
});

test('parts that are unknown, out of order or too small are refused', async (t) => {
  await using disk = await mountDisk();
  const { uploads } = disk.store;
  const id = await uploads.create('strict', {});
  const small = [Buffer.from('one'), Buffer.from('two'), Buffer.from('three')];
  const parts = await putParts(disk.store, id, 'strict', small);
  const [one, two, three] = parts as [PartRef, PartRef, PartRef];
  const cases: [PartRef[], string][] = [
    [[], 'InvalidRequest'],
    [[two, one], 'InvalidPartOrder'],
    [[one, one], 'InvalidPartOrder'],
    [[{ ...one, etag: two.etag }], 'InvalidPart'],
    [[{ ...one, etag: '../../../contents/x' }], 'InvalidPart'],
    [[{ partNumber: 4, etag: one.etag }], 'InvalidPart'],
    [[one, three], 'EntityTooSmall'],
  ];
  for (const [wanted, code] of cases) {
    await t.throwsAsync(uploads.complete(id, 'strict', wanted), { code });
  }
  for (const number of [0, -1, 1.5, 10_001, Number.NaN]) {
    const refused = uploads.putPart(id, 'strict', number, bodyOf('x'));
    await t.throwsAsync(refused, { code: 'InvalidArgument' });
  }
  const ids = [`${id}x`, '', '..', '.', `../${id}`, id.replaceAll(/[0-9]/gu, '0'), 'done-x'];
  for (const other of ids) {
    await t.throwsAsync(uploads.complete(other, 'strict', [one]), { code: 'NoSuchUpload' });
    await t.throwsAsync(uploads.abort(other, 'strict'), { code: 'NoSuchUpload' });
    await t.throwsAsync(uploads.putPart(other, 'strict', 1, bodyOf('')), { code: 'NoSuchUpload' });
    const page = uploads.listParts(other, 'strict', { after: 0, limit: 1 });
    await t.throwsAsync(page, { code: 'NoSuchUpload' });
  }
  await t.throwsAsync(uploads.putPart(id, 'other', 1, bodyOf('')), { code: 'NoSuchUpload' });
  await t.throwsAsync(uploads.abort(id, 'other'), { code: 'NoSuchUpload' });
  // Parts that are not named are dropped.
  t.is((await uploads.complete(id, 'strict', [two])).etag, md5OfMd5s([Buffer.from('two')]));
});

test('a part takes the place of one of its number, and parts are listed in pages', async (t) => {
  await using disk = await mountDisk();
  const { uploads } = disk.store;
  const id = await uploads.create('listed', {});
  for (const partNumber of [10_000, 3, 20, 3]) {
    await uploads.putPart(id, 'listed', partNumber, bodyOf(randomBytes(partNumber)));
  }
  const { etag } = await uploads.putPart(id, 'listed', 3, bodyOf('last'));
  const first = await uploads.listParts(id, 'listed', { after: 0, limit: 2 });
  t.true(first.isTruncated);
  t.deepEqual(
    first.parts.map(({ partNumber, sizeBytes }) => [partNumber, sizeBytes]),
    [
      [3, 4],
      [20, 20],
    ],
  );
  t.is(first.parts[0]?.etag, etag);
  const second = await uploads.listParts(id, 'listed', { after: 20, limit: 2 });
  t.deepEqual([second.isTruncated, second.parts[0]?.partNumber], [false, 10_000]);
  const names = await readdir(join(disk.layout.uploads, id));
  t.is(names.filter((name) => name.startsWith('part-')).length, 3);
});

test('an aborted upload leaves nothing', async (t) => {
  await using disk = await mountDisk();
  const { uploads } = disk.store;
  const id = await uploads.create('aborted', {});
  await uploads.putPart(id, 'aborted', 1, bodyOf('x'));
  await uploads.abort(id, 'aborted');
  await t.throwsAsync(uploads.abort(id, 'aborted'), { code: 'NoSuchUpload' });
  await t.throwsAsync(uploads.putPart(id, 'aborted', 2, bodyOf('x')), { code: 'NoSuchUpload' });
  t.deepEqual(await readdir(disk.layout.uploads), []);
});

test('one completion at a time; a refused one leaves the upload as it was', async (t) => {
  await using disk = await mountDisk();
  const { uploads } = disk.store;
  const contents = [randomBytes(5 * MiB), randomBytes(20 * MiB)];
  const id = await uploads.create('once', {});
  const parts = await putParts(disk.store, id, 'once', contents);
  await t.throwsAsync(uploads.complete(id, 'once', parts, refuse), { message: 'refused' });
  const listed = await uploads.listParts(id, 'once', { after: 0, limit: 10 });
  t.deepEqual(
    listed.parts.map(({ sizeBytes }) => sizeBytes),
    [5 * MiB, 20 * MiB],
  );
  const firstName = (await readdir(join(disk.layout.uploads, id))).find((name) =>
    /-00001-/u.test(name),
  );
  t.is((await stat(join(disk.layout.uploads, id, firstName ?? ''))).size, 5 * MiB);
  const completing = uploads.complete(id, 'once', parts);
  const again = uploads.complete(id, 'once', parts); // Like a client whose patience is over.
  const others = uploads.complete(id, 'once', parts.slice(1));
  const refused = t.throwsAsync(others, { code: 'NoSuchUpload' });
  await t.throwsAsync(uploads.abort(id, 'once'), { code: 'OperationAborted' });
  t.is((await completing).etag, md5OfMd5s(contents));
  t.deepEqual(await again, await completing);
  await refused;
  t.true((await contentOf(disk.store, 'once')).equals(Buffer.concat(contents)));
});

test('a completion that was cut off is not over because another part takes the place of its first', async (t) => {
  await using disk = await mountDisk();
  const { layout, store } = disk;
  const id = await store.uploads.create('cut', {});
  const [former] = await putParts(store, id, 'cut', [Buffer.from('former')]);
  const names = await readdir(join(layout.uploads, id));
  const firstPart = names.find((name) => name.startsWith('part-'));
  // The state when the end came between the note of the answer and the rename of the object.
  const info = { etag: 'x', modifiedAt: new Date() };
  const partsDigest = hash('sha256', JSON.stringify([[1, former?.etag]]));
  const answer = JSON.stringify({ key: 'cut', partsDigest, firstPart, info });
  await writeFile(join(layout.uploads, id, 'answer.json'), answer);
  const parts = await putParts(store, id, 'cut', [Buffer.from('present')]);
  await t.throwsAsync(store.uploads.complete(id, 'cut', [former!]), { code: 'InvalidPart' });
  await disk.reattach();
  await store.uploads.complete(id, 'cut', parts);
  t.is((await contentOf(store, 'cut')).toString(), 'present');
});

test('answers that have expired go while the disk stays attached', async (t) => {
  await using disk = await mountDisk();
  const { layout, store } = disk;
  const id = await store.uploads.create('done', {});
  await store.uploads.complete(id, 'done', await putParts(store, id, 'done', [Buffer.from('x')]));
  const before = new Date(Date.now() - 2 * 3_600_000);
  const aged = `done-${before.getTime().toString(16).padStart(11, '0')}${id.slice(11)}`;
  await rename(join(layout.uploads, `done-${id}`), join(layout.uploads, aged));
  await utimes(join(layout.uploads, aged), before, before);
  // The gateway opens a new store when no other request uses the disk.
  const next = await new ObjectStore(layout).uploads.create('next', {});
  t.deepEqual(await readdir(layout.uploads), [next]);
});

test('uploads are listed by key and age, with prefix, delimiter, and markers', async (t) => {
  await using disk = await mountDisk();
  const { uploads } = disk.store;
  const keys = ['b', 'a/1', 'a/2', 'a', 'é', '\uFFFD', '\u{10000}', 'c'];
  const ids = new Map<string, string[]>();
  for (const key of [...keys, 'b']) {
    ids.set(key, [...(ids.get(key) ?? []), await uploads.create(key, {})]);
  }
  const all = { prefix: '', keyMarker: '', uploadIdMarker: '', limit: 100 };
  const page = await uploads.list(all);
  t.deepEqual(
    page.uploads.map(({ key }) => key),
    ['a', 'a/1', 'a/2', 'b', 'b', 'c', 'é', '\uFFFD', '\u{10000}'],
  );
  t.deepEqual(
    page.uploads.filter(({ key }) => key === 'b').map(({ uploadId }) => uploadId),
    (ids.get('b') ?? []).toSorted((a, b) => (a < b ? -1 : 1)),
  );
  t.true(page.uploads.every(({ initiatedAt }) => Date.now() - initiatedAt.getTime() < 60_000));
  const grouped = await uploads.list({ ...all, delimiter: '/', limit: 3 });
  t.deepEqual(grouped.commonPrefixes, ['a/']);
  t.deepEqual([grouped.uploads.map(({ key }) => key), grouped.isTruncated], [['a', 'b'], true]);
  const uploadIdMarker = grouped.uploads[1]?.uploadId ?? '';
  const rest = await uploads.list({ ...all, delimiter: '/', keyMarker: 'b', uploadIdMarker });
  t.deepEqual(
    [rest.uploads[0]?.key, rest.uploads.length, rest.commonPrefixes, rest.isTruncated],
    ['b', 5, [], false],
  );
  const below = await uploads.list({ ...all, prefix: 'a/', keyMarker: 'a/1' });
  t.deepEqual(
    below.uploads.map(({ key }) => key),
    ['a/2'],
  );
});

test('pages of uploads lead through all of them, whether they end with an upload or a prefix', async (t) => {
  await using disk = await mountDisk();
  const { uploads } = disk.store;
  for (const key of ['a', 'b/1', 'b/2', 'c', 'c', 'd/1', 'e']) await uploads.create(key, {});
  for (const limit of [1, 2, 3, 4, 100]) {
    const found: string[] = [];
    let page;
    do {
      const { nextKeyMarker: keyMarker = '', nextUploadIdMarker: uploadIdMarker = '' } = page ?? {};
      page = await uploads.list({ prefix: '', delimiter: '/', keyMarker, uploadIdMarker, limit });
      found.push(...[...page.uploads.map(({ key }) => key), ...page.commonPrefixes].toSorted());
    } while (page.isTruncated && found.length < 20);
    t.deepEqual(found, ['a', 'b/', 'c', 'c', 'd/', 'e'], `${limit} at a time`);
  }
});

test('uploads of the week before and leftovers of puts go when the disk is attached', async (t) => {
  await using disk = await mountDisk();
  const { layout, store } = disk;
  const young = await store.uploads.create('young', {});
  const old = await store.uploads.create('old', {});
  const aged = (Date.now() - 8 * 86_400_000).toString(16).padStart(11, '0') + old.slice(11);
  await rename(join(layout.uploads, old), join(layout.uploads, aged));
  await writeFile(join(layout.uploads, 'put-leftover'), 'x');
  await writeFile(join(layout.uploads, `done-${old}`), '{}');
  const before = new Date(Date.now() - 2 * 3_600_000);
  await utimes(join(layout.uploads, `done-${old}`), before, before);
  await clearUploads(layout);
  t.deepEqual(await readdir(layout.uploads), [young]);
});
