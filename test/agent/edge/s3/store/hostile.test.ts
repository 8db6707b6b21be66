/*
 * Files that a command can put on a disk to lead the object API astray: the store must end in
 * bounded time and never touch anything outside the disk's contents.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants } from 'node:fs';
import { lstat, mkdir, open, readdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { run } from '../../../../../agent/system/spawn.ts';
import { errnoOf } from '../../../../../shared/errors.ts';
import {
  bodyOf,
  contentOf,
  mountDisk,
  type MountedDisk,
} from '../../../../helpers/mounted-disk.ts';
import { MiB } from '../../../../../shared/units.ts';
import { isFull } from '../../../../helpers/full.ts';

const plain = { attributes: {} };

const large = (): AsyncIterable<Buffer> => bodyOf(Buffer.alloc(40 * MiB, 1));

const list = async ({ store }: MountedDisk): Promise<string[]> => {
  const { entries } = await store.list({ prefix: '', after: '', limit: 1000 });
  return entries.map((entry) => ('key' in entry ? entry.key : entry.prefix));
};

test('links that lead out are as if missing, and nothing is written through them', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  const outside = join(disk.mount, 'outside');
  await mkdir(outside);
  await writeFile(join(outside, 'secret'), 'secret');
  const links = {
    absolute: outside,
    relative: '../outside',
    root: '/',
    up: '..',
    uploads: '../uploads',
    proc: '/proc/self/root',
    loop: 'loop',
    first: 'second',
    second: 'first',
  };
  for (const [name, to] of Object.entries(links)) await symlink(to, join(layout.contents, name));
  await symlink('../outside/secret', join(layout.contents, 'file'));
  for (const name of [...Object.keys(links), 'file']) {
    for (const key of [name, `${name}/`, `${name}/secret`, `${name}/new/deep`]) {
      await t.throwsAsync(store.head(key), { code: 'NoSuchKey' }, key);
      await t.throwsAsync(store.open(key), { code: 'NoSuchKey' }, key);
    }
    for (const key of [`${name}/secret`, `${name}/new/deep`, `${name}/new/`, `${name}/`]) {
      await t.throwsAsync(store.put(key, bodyOf('x'.repeat(key.endsWith('/') ? 0 : 1)), plain), {
        code: 'OperationAborted',
      });
      await t.notThrowsAsync(store.delete(key));
    }
    const below = `${name}/secret`;
    await t.throwsAsync(store.append(below, Buffer.from('x'), {}), { code: 'OperationAborted' });
    t.deepEqual((await store.list({ prefix: `${name}/`, after: '', limit: 10 })).entries, []);
  }
  t.deepEqual(await list(disk), []);
  await store.append('relative', Buffer.from('x'), {});
  await store.put('file', bodyOf('mine'), plain);
  t.is(await readFile(join(outside, 'secret'), 'utf8'), 'secret');
  t.deepEqual(await readdir(outside), ['secret']);
  t.true((await lstat(join(layout.contents, 'file'))).isFile());
});

test('pipes, sockets, and devices are as if missing and are never opened', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  const at = (name: string): string => join(layout.contents, name);
  await run('mkfifo', [at('pipe')]);
  await run('mknod', [at('device'), 'c', '1', '3']);
  await run('python3', [
    '-c',
    'import socket,sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])',
    at('socket'),
  ]);
  await symlink('pipe', at('link'));
  // A reader would make this succeed.
  const opening = open(at('pipe'), constants.O_WRONLY | constants.O_NONBLOCK);
  t.is(errnoOf(await opening.catch((error: unknown) => error)), 'ENXIO');
  for (const key of ['pipe', 'device', 'socket', 'link']) {
    await t.throwsAsync(store.head(key), { code: 'NoSuchKey' });
    await t.throwsAsync(store.open(key), { code: 'NoSuchKey' });
    await t.throwsAsync(store.put(`${key}/x`, bodyOf('x'), plain), { code: 'OperationAborted' });
    if (key !== 'link') await store.delete(key);
  }
  t.deepEqual(await list(disk), []);
  t.is((await readdir(layout.contents)).length, 4);
  await store.append('pipe', Buffer.from('file now'), {});
  await store.put('device', bodyOf('file now'), plain);
  t.is(String(await contentOf(store, 'pipe')), 'file now');
  t.deepEqual(await list(disk), ['device', 'link', 'pipe']);
});

test('a parent that is exchanged for a link outside all the time lets nothing out', async (t) => {
  await using disk = await mountDisk();
  const { store, layout } = disk;
  const outside = join(disk.mount, 'outside');
  await mkdir(join(outside, 'deep'), { recursive: true });
  await mkdir(join(layout.contents, 'real/deep'), { recursive: true });
  const swap = `
    const fs = require('node:fs');
    process.chdir(${JSON.stringify(layout.contents)});
    console.log('ready');
    for (;;) {
      try { fs.renameSync('real', 'parent'); } catch {}
      try { fs.renameSync('parent', 'real'); } catch {}
      try { fs.symlinkSync('../outside', 'parent'); } catch {}
      try { fs.unlinkSync('parent'); } catch {}
    }`;
  const child = spawn(process.execPath, ['-e', swap], { stdio: ['ignore', 'pipe', 'inherit'] });
  try {
    await once(child.stdout, 'data');
    const outcomes = new Map<string, number>();
    const attempt = async (work: Promise<unknown>): Promise<void> => {
      const name = await work.then(
        () => 'done',
        (error: unknown) => errnoOf(error) ?? String(error),
      );
      outcomes.set(name, (outcomes.get(name) ?? 0) + 1);
    };
    for (let round = 0; round < (isFull ? 2000 : 200); round += 1) {
      await attempt(store.put(`parent/deep/${round}`, bodyOf('x'), { attributes: { uid: 1 } }));
      await attempt(store.put(`parent/new-${round}/file`, bodyOf('x'), plain));
      await attempt(store.append('parent/log', Buffer.from('x'), {}));
      await attempt(store.delete(`parent/deep/${round - 5}`));
      await attempt(store.head(`parent/deep/${round}`));
      await attempt(store.list({ prefix: '', after: '', limit: 100 }));
    }
    t.log(Object.fromEntries(outcomes));
    const codes = new Set(['done', 'NoSuchKey', 'OperationAborted', 'ServiceUnavailable']);
    t.true([...outcomes.keys()].every((name) => codes.has(name)));
    t.true((outcomes.get('done') ?? 0) > 0);
  } finally {
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
  t.deepEqual(await readdir(outside), ['deep']);
  t.deepEqual(await readdir(join(outside, 'deep')), []);
  t.deepEqual((await readdir(disk.mount)).toSorted(), ['contents', 'outside', 'uploads']);
  t.deepEqual(await readdir(layout.uploads), []);
});

test('a full disk refuses objects and keeps those that are there', async (t) => {
  await using disk = await mountDisk(24 * MiB);
  const { store, layout } = disk;
  await store.put('kept', bodyOf('kept'), plain);
  await store.append('log', Buffer.from('line'), {});
  const code = 'QuotaExceeded';
  await t.throwsAsync(store.put('kept', large(), plain), { code });
  const id = await store.uploads.create('parts', {});
  await t.throwsAsync(store.uploads.putPart(id, 'parts', 1, large()), { code });
  t.deepEqual(await readdir(layout.uploads), [id]);
  await run('sh', ['-c', `cat /dev/zero >${join(layout.contents, 'filler')} || true`], {});
  await t.throwsAsync(store.append('log', Buffer.alloc(MiB), {}), { code });
  t.is(String(await contentOf(store, 'kept')), 'kept');
  t.is(String(await contentOf(store, 'log')), 'line');
  await store.delete('filler');
  await store.put('fits', bodyOf(Buffer.alloc(MiB)), plain);
  t.deepEqual(await list(disk), ['fits', 'kept', 'log']);
});
