/* A process that is killed while it makes objects: whole objects or none, and no litter. */
import { spawn } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { appendFile, link, mkdir, readdir, rename, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { unmountImage } from '../../../../../agent/disks/mount.ts';
import { ObjectStore } from '../../../../../agent/edge/s3/store/object-store.ts';
import { run } from '../../../../../agent/system/spawn.ts';
import {
  bodyOf,
  contentOf,
  mountDisk,
  type MountedDisk,
} from '../../../../helpers/mounted-disk.ts';
import { MiB } from '../../../../../shared/units.ts';
import { isFull } from '../../../../helpers/full.ts';

const md5 = (bytes: Buffer): string => createHash('md5').update(bytes).digest('hex');
const module = new URL('../../../../../agent/edge/s3/store/object-store.ts', import.meta.url).href;

/** Runs the text with a store of the disk, and kills it after a while. */
async function killAfter(disk: MountedDisk, text: string, waitMs: number): Promise<void> {
  const script = `
    const { ObjectStore } = await import('${module}');
    const store = new ObjectStore(${JSON.stringify(disk.layout)});
    const body = async function* (n, size) {
      for (let left = size; left > 0; left -= 65536) yield Buffer.alloc(Math.min(left, 65536), n);
    };
    console.log('ready');
    ${text}`;
  const child = spawn(process.execPath, ['--input-type=module', '--eval', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  await once(child.stdout, 'data');
  await sleep(waitMs);
  child.kill('SIGKILL');
  await exited;
}

test('a put that is cut off leaves the former object or the new one', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  for (let round = 0; round < (isFull ? 40 : 8); round += 1) {
    const text = `
      for (let n = 1; ; n = n % 250 + 1) {
        await Promise.all([
          store.put('dir-' + n + '/small', body(n, 1000), { attributes: { uid: n } }),
          store.put('large', body(n, ${4 * MiB}), { attributes: { mode: 0o600 } }),
        ]);
      }`;
    await killAfter(disk, text, 29 * round);
    await disk.reattach();
    t.deepEqual(await readdir(layout.uploads), []);
    const { entries } = await store.list({ prefix: '', after: '', limit: 1000 });
    for (const entry of entries) {
      if (!('key' in entry)) continue;
      const bytes = await contentOf(store, entry.key);
      t.is(bytes.length, entry.key === 'large' ? 4 * MiB : 1000);
      t.is(entry.etag, md5(bytes));
      t.true(bytes.every((byte) => byte === bytes[0]));
    }
  }
});

test('a completion that is cut off can be repeated, and answers one object', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  const contents = [1, 2, 3].map((n) => Buffer.alloc(6 * MiB, n));
  const whole = Buffer.concat(contents);
  for (let round = 0; round < (isFull ? 40 : 8); round += 1) {
    const key = `object-${round}`;
    const id = await store.uploads.create(key, {});
    const parts: { partNumber: number; etag: string }[] = [];
    for (const [index, content] of contents.entries()) {
      const { etag } = await store.uploads.putPart(id, key, index + 1, bodyOf(content));
      parts.push({ partNumber: index + 1, etag });
    }
    const text = `await store.uploads.complete('${id}', '${key}', ${JSON.stringify(parts)});`;
    await killAfter(disk, text, 5 * round);
    await disk.reattach();
    const found = await contentOf(store, key).catch(() => undefined);
    t.true(found === undefined || found.equals(whole));
    const info = await new ObjectStore(layout).uploads.complete(id, key, parts);
    t.is(info.etag, (await store.head(key)).etag);
    t.true((await contentOf(store, key)).equals(whole));
    t.deepEqual(
      (await readdir(layout.uploads)).filter((name) => !name.startsWith('done-')),
      [],
    );
    await store.delete(key);
  }
  await unmountImage(disk.image, disk.mount); // Waits until the image is free.
  await t.notThrowsAsync(run('e2fsck', ['-f', '-n', disk.image]));
});

test('an append that is cut off leaves all of its bytes or none, and the metadata', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  const pieceBytes = 700_000;
  const attributes = { contentType: 'x/y', headers: { 'x-amz-meta-a': 'b' } };
  let longest = 0;
  for (let round = 0; round < (isFull ? 60 : 8); round += 1) {
    await store.append('log', Buffer.from('first'), attributes);
    const text = `
      for (let n = 1; ; n += 1) await store.append('log', Buffer.alloc(${pieceBytes}, n % 200 + 1), {});`;
    await killAfter(disk, text, 3 * round);
    await disk.reattach();
    t.deepEqual(await readdir(layout.uploads), []);
    const info = await store.head('log');
    const bytes = await contentOf(store, 'log');
    const pieces = (bytes.length - 'first'.length) / pieceBytes;
    t.true(Number.isInteger(pieces), `${bytes.length} bytes`);
    t.like(info, { etag: md5(bytes), ...attributes });
    longest = Math.max(longest, pieces);
    await store.delete('log');
  }
  t.true(longest > 0);
});

test('an append of which only part was written is undone when the disk is attached', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  const former = await store.append('log', Buffer.from('first'), { contentType: 'x/y' });
  const other = await store.append('other', Buffer.from('first'), {});
  for (const [key, name] of [
    ['log', 'moved by a command'],
    ['other', 'other'],
  ] as const) {
    const place = join(layout.contents, key);
    const { mtimeNs } = await stat(place, { bigint: true });
    await link(place, join(layout.uploads, `append-${randomUUID()}-5-100-${mtimeNs}`));
    if (key === 'log') await appendFile(place, 'a part of it');
    await rename(place, join(layout.contents, name));
  }
  await disk.reattach();
  t.deepEqual(await readdir(layout.uploads), []);
  const found = await store.head('moved by a command');
  t.like(found, { etag: former.etag, contentType: 'x/y', sizeBytes: 5 });
  t.is((await store.head('other')).etag, other.etag);
});

test('an upload whose object appeared right before the end is over when the disk is attached', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  const id = await store.uploads.create('key', {});
  const { etag } = await store.uploads.putPart(id, 'key', 1, bodyOf('content'));
  const parts = [{ partNumber: 1, etag }];
  // The state after a crash between the rename of the object and the end of the upload.
  const { info } = { info: await store.uploads.complete(id, 'key', parts) };
  const other = await store.uploads.create('key', {});
  const answer = { key: 'key', partsDigest: 'x', firstPart: 'part-gone', info };
  await writeFile(join(layout.uploads, other, 'answer.json'), JSON.stringify(answer));
  // The state after a crash that followed the move of the answer.
  await mkdir(join(layout.uploads, id));
  await writeFile(join(layout.uploads, id, 'upload.json'), JSON.stringify({ key: 'key' }));
  await disk.reattach();
  t.deepEqual(
    (await readdir(layout.uploads)).toSorted(),
    [`done-${id}`, `done-${other}`].toSorted(),
  );
  t.true((await stat(join(layout.uploads, `done-${other}`))).isFile());
});
