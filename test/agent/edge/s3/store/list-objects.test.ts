/* Listings, against a model that holds all keys in memory and knows nothing of directories. */
import { createHook } from 'node:async_hooks';
import { mkdir, open, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import * as fc from '../../../../helpers/fast-check.ts';
import { compareKeys } from '../../../../../agent/edge/s3/store/keys.ts';
import type { ListRequest } from '../../../../../agent/edge/s3/store/list-objects.ts';
import type { ObjectStore } from '../../../../../agent/edge/s3/store/object-store.ts';
import { bodyOf, contentOf, mountDisk } from '../../../../helpers/mounted-disk.ts';
import { run } from '../../../../../agent/system/spawn.ts';
import { EDGE_LIMITS } from '../../../../../agent/edge/limits.ts';
import { GiB } from '../../../../../shared/units.ts';
import { unicodeText } from '../../../../helpers/unicode-text.ts';
import { isFull } from '../../../../helpers/full.ts';

const runs = isFull ? 200 : 25;

/** Keys, or common prefixes, of one page as text. */
async function namesOf(
  store: ObjectStore,
  request: Partial<ListRequest> = {},
): Promise<{ names: string[]; isTruncated: boolean }> {
  const page = await store.list({ prefix: '', after: '', limit: 1000, ...request });
  const names = page.entries.map((entry) => ('key' in entry ? entry.key : entry.prefix));
  return { names, isTruncated: page.isTruncated };
}

/** All pages, each begun where the one before it ended. */
async function allNames(store: ObjectStore, request: Partial<ListRequest>): Promise<string[]> {
  const found: string[] = [];
  for (let after = request.after ?? ''; ;) {
    const { names, isTruncated } = await namesOf(store, { ...request, after });
    found.push(...names);
    if (!isTruncated) return found;
    after = names.at(-1) ?? '';
  }
}

/** Lists keys by S3's rules; a common prefix that was listed is not listed again. */
function expected(
  keys: Iterable<string>,
  { prefix = '', after = '', delimiter }: Partial<ListRequest>,
): string[] {
  const names = new Set<string>();
  for (const key of keys) {
    if (!key.startsWith(prefix)) continue;
    const end = delimiter === undefined ? -1 : key.indexOf(delimiter, prefix.length);
    const name = end === -1 ? key : key.slice(0, end + (delimiter ?? '').length);
    const isInside = delimiter === '/' && end !== -1 && after.startsWith(name) && after !== name;
    if (delimiter !== '/' && (compareKeys(key, after) <= 0 || name === after)) continue;
    if (delimiter !== '/') names.add(name);
    else if (isInside || compareKeys(name, after) > 0) names.add(name);
  }
  return [...names].sort(compareKeys);
}

const oddPiece = fc.constantFrom(
  ...['a', 'b', 'a.b', 'a-', 'a0', '.', '-', '%2F', '+', ' ', '\n', '\t', '\u007F', '\u0001', 'é'],
  ...['e\u0301', '\u{1F600}', '\uFFFD', '\uE000', '"', "'", '&<>', '\\', '*', '?', '~', '\u0930'],
);
const oddName = fc
  .oneof(
    {
      weight: 20,
      arbitrary: fc.array(oddPiece, { minLength: 1, maxLength: 3 }).map((p) => p.join('')),
    },
    { weight: 3, arbitrary: unicodeText({ minLength: 1, maxLength: 12 }) },
    { weight: 1, arbitrary: fc.constant('ü'.repeat(127)) },
  )
  .filter((name) => name !== '.' && name !== '..' && !/[/\0]/u.test(name) && name.isWellFormed());
const oddKey = fc
  .array(oddName, { minLength: 1, maxLength: 4 })
  .map((names) => names.join('/'))
  .filter((key) => Buffer.byteLength(key) <= 1024);

/** A key none of whose parents is an object and that is no parent itself. */
const fits = (keys: ReadonlyMap<string, string>, key: string): boolean =>
  [...keys.keys()].every((other) => !other.startsWith(`${key}/`) && !key.startsWith(`${other}/`));

test('what was put and not deleted is listed, by prefix, delimiter, bound, and page', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  const command = fc.record({
    key: oddKey,
    isPut: fc.integer({ min: 0, max: 3 }).map((n) => n > 0),
  });
  const query = fc.record({
    at: fc.nat(),
    cut: fc.nat(20),
    more: fc.constantFrom('', '/', 'a', '\u0001', '\uFFFF'),
    startAt: fc.nat(),
    startCut: fc.nat(20),
    limit: fc.integer({ min: 1, max: 5 }),
  });
  const scenario = [
    fc.array(command, { maxLength: 25 }),
    fc.array(query, { minLength: 8 }),
  ] as const;
  await fc.assert(
    fc.asyncProperty(...scenario, async (commands, queries) => {
      await rm(layout.contents, { recursive: true });
      await mkdir(layout.contents);
      const keys = new Map<string, string>();
      for (const { key, isPut } of commands) {
        const victim = [...keys.keys()].at(key.length % Math.max(1, keys.size)) ?? key;
        if (!isPut) {
          await store.delete(victim);
          keys.delete(victim);
          // S3 lists nothing for a prefix without keys.
          for (
            let end = victim.lastIndexOf('/');
            end !== -1;
            end = victim.lastIndexOf('/', end - 1)
          ) {
            await store.delete(victim.slice(0, end + 1));
          }
        } else if (fits(keys, key)) {
          const { etag } = await store.put(key, bodyOf(key), { attributes: {} });
          keys.set(key, etag);
        } else if (!keys.has(key)) {
          const refused = store.put(key, bodyOf(key), { attributes: {} });
          await t.throwsAsync(refused, { code: 'OperationAborted' });
        }
      }
      const { entries } = await store.list({ prefix: '', after: '', limit: 1000 });
      for (const entry of entries) {
        if ('prefix' in entry) t.fail();
        else t.is(entry.etag, keys.get(entry.key) ?? '');
      }
      for (const key of keys.keys()) t.is(String(await contentOf(store, key)), key);
      const all = [...keys.keys()];
      const pick = (at: number, cut: number): string => {
        const key = all.at(at % Math.max(1, all.length)) ?? '';
        return Array.from(key).slice(0, cut).join('');
      };
      for (const { at, cut, more, startAt, startCut, limit } of queries) {
        for (const delimiter of [undefined, '/', 'a', '-', './', '\u{1F600}']) {
          const request = {
            prefix: pick(at, cut),
            after: pick(startAt, startCut) + more,
            delimiter,
          };
          const names = expected(keys.keys(), request);
          t.deepEqual((await namesOf(store, request)).names, names, JSON.stringify(request));
          t.deepEqual(await allNames(store, { ...request, limit }), names, JSON.stringify(request));
        }
      }
    }),
    { numRuns: runs },
  );
});

test('prefixes that no key can have list nothing', async (t) => {
  await using disk = await mountDisk();
  const { store } = disk;
  await store.put('dir/file', bodyOf('x'), { attributes: {} });
  await store.put('plain', bodyOf('x'), { attributes: {} });
  const prefixes = ['/', '//', 'dir//', './', '../', 'dir/../', 'dir/./', 'plain/', 'no/', 'a\0/b'];
  for (const prefix of [...prefixes, `${'x'.repeat(300)}/`, 'y/'.repeat(3000)]) {
    t.deepEqual((await namesOf(store, { prefix })).names, [], prefix);
    t.deepEqual((await namesOf(store, { prefix, delimiter: '/' })).names, [], prefix);
  }
  t.deepEqual((await namesOf(store, { limit: 0 })).names, []);
});

test('directories are common prefixes even when empty, and keys when they were put as such', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  await mkdir(join(layout.contents, 'tree', 'empty'), { recursive: true });
  await store.put('tree/full/file', bodyOf('x'), { attributes: {} });
  const names = (request: Partial<ListRequest>): Promise<{ names: string[] }> =>
    namesOf(store, { prefix: 'tree/', ...request });
  t.deepEqual((await names({})).names, ['tree/full/file']);
  t.deepEqual((await names({ delimiter: '/' })).names, ['tree/empty/', 'tree/full/']);
  t.deepEqual((await names({ delimiter: '/', after: 'tree/empty/' })).names, ['tree/full/']);
  t.deepEqual((await names({ after: 'tree/full/' })).names, ['tree/full/file']);
  for (const key of ['tree/', 'tree/full/', 'tree/put/']) {
    await store.put(key, bodyOf(''), { attributes: {} });
  }
  const keys = ['tree/', 'tree/full/', 'tree/full/file', 'tree/put/'];
  t.deepEqual((await names({})).names, keys);
  t.deepEqual(await allNames(store, { prefix: '', limit: 1 }), keys);
  t.deepEqual(await allNames(store, { prefix: 'tree/', limit: 1 }), keys);
  t.deepEqual(await allNames(store, { prefix: 'tree/full/', limit: 1 }), keys.slice(1, 3));
  const children = ['tree/', 'tree/empty/', 'tree/full/', 'tree/put/'];
  t.deepEqual(await allNames(store, { prefix: 'tree/', delimiter: '/', limit: 1 }), children);
  for (const key of keys) await store.delete(key);
  t.deepEqual((await names({})).names, []);
  await store.put('tree/full/file', bodyOf('x'), { attributes: {} });
  t.deepEqual((await names({})).names, ['tree/full/file']);
});

test('a page with another delimiter ends after a bounded walk, and the next one goes on', async (t) => {
  await using disk = await mountDisk(2 * GiB);
  const { store, layout } = disk;
  const count = EDGE_LIMITS.keysWalkedPerPageMax + 500;
  await run(
    'sh',
    ['-c', `cd '${layout.contents}'; seq -f 'a-%.0f' ${count} | xargs touch; touch b`],
    {
      timeoutMs: 60_000,
    },
  );
  const first = await store.list({ prefix: '', after: '', limit: 10, delimiter: '-' });
  t.deepEqual([first.entries, first.isTruncated, first.last], [[{ prefix: 'a-' }], true, 'a-']);
  t.deepEqual(await allNames(store, { delimiter: '-' }), ['a-', 'b']);
});

test('links to files of the disk are listed as these, other links and kinds are not', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  await store.put('links/a/real', bodyOf('12345'), { attributes: {} });
  const at = (name: string): string => join(layout.contents, 'links', name);
  const targets = { file: 'a/real', up: '../links/a/real', twice: 'file' };
  const skipped = {
    dir: 'a',
    dead: 'nowhere',
    out: '../../uploads',
    abs: '/etc/passwd',
    loop: 'loop',
  };
  for (const [name, to] of Object.entries({ ...targets, ...skipped })) await symlink(to, at(name));
  const { entries } = await store.list({ prefix: 'links/', after: '', limit: 10 });
  t.deepEqual(
    entries.map((entry) => 'key' in entry && [entry.key, entry.sizeBytes, entry.etag]),
    await Promise.all(
      ['a/real', 'file', 'twice', 'up'].map(async (name) => [
        `links/${name}`,
        5,
        (await store.head('links/a/real')).etag,
      ]),
    ),
  );
});

test('names that are not UTF-8 are left out', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  await mkdir(join(layout.contents, 'bytes'));
  const bad = [
    [0xff],
    [0xc3],
    [0xc0, 0xaf],
    [0xed, 0xa0, 0x80],
    [0xf4, 0x90, 0x80, 0x80],
    [0xe0, 0x80, 0x80],
  ];
  for (const bytes of [...bad, [0xf4, 0x8f, 0xbf, 0xbf], [0xc3, 0xbc], [0xee, 0x80, 0x80]]) {
    const path = Buffer.concat([Buffer.from(join(layout.contents, 'bytes/')), Buffer.from(bytes)]);
    await writeFile(path, '');
  }
  const { names } = await namesOf(store, { prefix: 'bytes/' });
  t.deepEqual(names, ['bytes/ü', 'bytes/\uE000', 'bytes/\u{10FFFF}']);
});

test('a deep tree is walked as far as paths reach, with little held', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  let path = join(layout.contents, 'deep');
  const parts = Array.from({ length: 400 }, () => 'd');
  await mkdir(join(path, ...parts), { recursive: true });
  await writeFile(join(path, ...parts, 'bottom'), 'x');
  await writeFile(join(path, 'z'), 'x');
  const { names } = await namesOf(store, { prefix: 'deep/' });
  t.deepEqual(names, [`deep/${'d/'.repeat(400)}bottom`, 'deep/z']);
  path = join(path, 'e');
  t.deepEqual((await namesOf(store, { prefix: 'deep/d', limit: 1 })).isTruncated, false);
});

test('a page can be ended while it is made', async (t) => {
  await using disk = await mountDisk();
  const { store } = disk;
  const request = { prefix: '', after: '', limit: 10, signal: AbortSignal.abort() };
  await t.throwsAsync(store.list(request), { name: 'AbortError' });
});

/** Many pages; full runs have a hundred. */
const WIDE = isFull ? 100_000 : 20_000;

test(`${WIDE} keys of one directory come in pages in byte order`, async (t) => {
  await using disk = await mountDisk(2 * GiB);
  const { store, layout } = disk;
  const directory = join(layout.contents, 'wide');
  await mkdir(directory);
  for (let start = 0; start < WIDE; start += 1000) {
    await Promise.all(
      Array.from({ length: 1000 }, async (_, index) => {
        const number = ((start + index) * 7919) % WIDE;
        await (await open(join(directory, `k${number}`), 'wx')).close();
      }),
    );
  }
  const keys = await allNames(store, { prefix: 'wide/' });
  t.is(keys.length, WIDE);
  t.is(new Set(keys).size, WIDE);
  t.true(keys.every((key, index) => index === 0 || compareKeys(keys[index - 1] ?? '', key) < 0));
  const status = await readFile('/proc/self/status', 'utf8');
  t.log(/VmHWM.*/u.exec(status)?.[0]);
});

// By itself: the promises of other tests would be counted, too.
test.serial('an entry takes no more work for the directories that it lies in', async (t) => {
  await using disk = await mountDisk();
  const { store } = disk;
  const { contents } = disk.layout;
  const files = 200;
  const work: number[] = [];
  for (const depth of [100, 300]) {
    const path = `d${depth}/${'d/'.repeat(depth)}`;
    await mkdir(join(contents, path), { recursive: true });
    for (let index = 0; index < files; index += 1)
      await writeFile(join(contents, path, `${index}`), '');
    let promises = 0;
    const init = (_id: number, type: string): void => {
      if (type === 'PROMISE') promises += 1;
    };
    const hook = createHook({ init }).enable();
    const { names } = await namesOf(store, { prefix: `d${depth}/` });
    hook.disable();
    t.is(names.length, files);
    work.push(promises);
  }
  const [shallow = 0, deep = 0] = work;
  // Each directory is read, and that takes some; it is not taken again for each file.
  t.true(deep < 3 * shallow && deep < 100 * files, `${shallow} and ${deep} promises`);
});
