/*
 * Small objects, which one call opens, reads and closes: commands may replace and cut them, and put
 * anything else in their place, at any moment of it. That nothing stays open is found out when the
 * disk is unmounted.
 */
import { mkdir, open, rename, symlink, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { TICK_MS } from '../../../../../agent/edge/s3/store/settled-file.ts';
import { run } from '../../../../../agent/system/spawn.ts';
import { mountDisk, type MountedDisk } from '../../../../helpers/mounted-disk.ts';

const CONTENT_MAX = 4096;
const ROUNDS = 400;

interface Read {
  readonly sizeBytes: number;
  readonly content: string;
}

/** Undefined when the object was opened instead; it is closed again. */
async function read({ store }: MountedDisk, key: string): Promise<Read | undefined> {
  const found = await store.readOrOpen(key, CONTENT_MAX);
  if ('content' in found) return { sizeBytes: found.sizeBytes, content: found.content.toString() };
  await found.close();
  return undefined;
}

/** Reads while a command changes the file again and again, with pauses in which it settles. */
async function readDuring(
  disk: MountedDisk,
  key: string,
  change: (round: number) => Promise<void>,
): Promise<Read[]> {
  const ended = new AbortController();
  const changing = (async () => {
    for (let round = 0; !ended.signal.aborted; round += 1) {
      await change(round);
      await sleep(round % 3 === 0 ? 2 * TICK_MS : 0);
    }
  })();
  const reads: Read[] = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    const found = await read(disk, key);
    if (found !== undefined) reads.push(found);
    await sleep(1);
  }
  ended.abort();
  await changing;
  return reads;
}

test('an object that is replaced all the time is read as one of them', async (t) => {
  await using disk = await mountDisk();
  const path = join(disk.layout.contents, 'key');
  const versions = ['a'.repeat(1000), 'b'.repeat(3000), ''];
  await writeFile(path, '');
  const reads = await readDuring(disk, 'key', async (round) => {
    await writeFile(`${path}.new`, versions[round % versions.length] ?? '');
    await rename(`${path}.new`, path);
  });
  t.true(reads.length > 0);
  for (const { sizeBytes, content } of reads) {
    t.is(content.length, sizeBytes);
    t.true(versions.includes(content));
  }
});

test('an object that is cut and extended all the time is as long as it is said to be', async (t) => {
  await using disk = await mountDisk();
  const path = join(disk.layout.contents, 'key');
  await writeFile(path, 'x'.repeat(2000));
  const reads = await readDuring(disk, 'key', (round) => truncate(path, (round % 4) * 1000));
  t.true(reads.length > 0);
  for (const { sizeBytes, content } of reads) {
    t.is(content.length, sizeBytes);
    t.regex(content, /^x*\0*$/u);
  }
});

test('what is no regular file is no object: it is not opened, and holds nothing up', async (t) => {
  await using disk = await mountDisk();
  const { contents } = disk.layout;
  await run('mkfifo', [join(contents, 'fifo')]);
  await run('mknod', [join(contents, 'device'), 'c', '1', '3']);
  await mkdir(join(contents, 'directory'));
  await writeFile(join(disk.mount, 'outside'), 'secret');
  for (const [name, to] of Object.entries({
    'link-to-fifo': 'fifo',
    'link-to-device': 'device',
    'link-out': '../outside',
    'link-to-nothing': 'nothing',
  })) {
    await symlink(to, join(contents, name));
  }
  for (const name of [
    'fifo',
    'device',
    'directory',
    'link-to-fifo',
    'link-to-device',
    'link-out',
  ]) {
    await t.throwsAsync(read(disk, name), { code: 'NoSuchKey' }, name);
    await t.throwsAsync(disk.store.head(name), { code: 'NoSuchKey' }, name);
  }
  await t.throwsAsync(read(disk, 'link-to-nothing'), { code: 'NoSuchKey' });
  // A reader that had opened the FIFO would let its writer go on.
  const writing = open(join(contents, 'fifo'), 'w');
  t.is(await Promise.race([writing, sleep(10 * TICK_MS, 'waits')]), 'waits');
  const reader = await open(join(contents, 'fifo'), 'r');
  await Promise.all([reader.close(), writing.then((writer) => writer.close())]);
});

test('a link to a file on the disk is read, and a directory by its own key', async (t) => {
  await using disk = await mountDisk();
  const { contents } = disk.layout;
  await mkdir(join(contents, 'directory'));
  await writeFile(join(contents, 'directory', 'file'), 'content');
  await symlink('directory/file', join(contents, 'link'));
  await sleep(2 * TICK_MS);
  t.is((await read(disk, 'link'))?.content, 'content');
  t.is(await read(disk, 'directory/'), undefined);
});
