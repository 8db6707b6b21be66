/* System calls as root, on mounts of the test's own. */
import { closeSync, constants, readFileSync, writeSync } from 'node:fs';
import { mkdir, readdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { mountsBelow } from '../../../agent/system/mount-table.ts';
import { MountAttribute, MountFlag, native, UnmountFlag } from '../../../agent/native/native.ts';
import { run } from '../../../agent/system/spawn.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

const flags = MountFlag.nosuid | MountFlag.nodev;

/** A directory on which a small file system in memory is mounted. */
async function mounted(): Promise<AsyncDisposable & { path: string; disk: string }> {
  const directory = await temporaryDirectory();
  const disk = join(directory.path, 'disk');
  await mkdir(disk);
  await native.mount('tmpfs', disk, 'tmpfs', flags, 'size=1m');
  return {
    path: directory.path,
    disk,
    [Symbol.asyncDispose]: async () => {
      for (const target of await mountsBelow(directory.path)) {
        await native.unmount(target, UnmountFlag.detach);
      }
      await directory[Symbol.asyncDispose]();
    },
  };
}

test('errors are those of the system, with their name', async (t) => {
  await using place = await mounted();
  const nowhere = join(place.path, 'nowhere');
  await t.throwsAsync(native.mount('tmpfs', nowhere, 'tmpfs', flags, ''), { code: 'ENOENT' });
  await t.throwsAsync(native.mount('x', place.disk, 'nosuchfs', flags, ''), { code: 'ENODEV' });
  await t.throwsAsync(native.unmount(place.path, 0), { code: 'EINVAL' });
});

test('a text too long, or with a NUL, is refused instead of cut', async (t) => {
  const long = 'x'.repeat(9000);
  t.throws(() => native.mount(long, '/x', 'tmpfs', 0, ''), { code: 'EINVAL' });
  t.throws(() => native.mount('tmpfs', '/tmp\0/x', 'tmpfs', 0, ''), { code: 'EINVAL' });
  t.throws(() => native.unmount(long, 0), { code: 'EINVAL' });
  t.throws(() => native.attach('/tmp', long, '/x', 0, -1), { code: 'EINVAL' });
  const untyped = native as unknown as Record<string, (...args: unknown[]) => unknown>;
  for (const name of ['mount', 'unmount', 'attach', 'openBeneath', 'unreadBytes']) {
    t.throws(() => untyped[name]?.());
    t.throws(() => untyped[name]?.({}, [], null, 7, 8));
  }
});

test('a directory of a disk is attached elsewhere, writable or not', async (t) => {
  await using place = await mounted();
  await mkdir(join(place.disk, 'a/b'), { recursive: true });
  await writeFile(join(place.disk, 'a/b/file'), 'x');
  const [all, part] = [join(place.path, 'all'), join(place.path, 'part')];
  await mkdir(all);
  await mkdir(part);
  await native.attach(place.disk, '', all, 0, -1);
  await native.attach(place.disk, 'a/b', part, MountAttribute.readOnly, -1);
  await writeFile(join(all, 'new'), 'y');
  t.deepEqual(new Set(await readdir(place.disk)), new Set(['a', 'new']));
  t.deepEqual(await readdir(part), ['file']);
  await t.throwsAsync(writeFile(join(part, 'file'), 'z'), { code: 'EROFS' });
  await native.unmount(part, 0);
  await native.unmount(all, 0);
});

test('a directory is attached as data: no program of it runs, no link of it is followed', async (t) => {
  await using place = await mounted();
  await writeFile(join(place.disk, 'program'), '#!/bin/sh\n', { mode: 0o755 });
  await symlink('program', join(place.disk, 'link'));
  const target = join(place.path, 'target');
  await mkdir(target);
  const { noExec, noSymlinkFollow } = MountAttribute;
  await native.attach(place.disk, '', target, noExec | noSymlinkFollow, -1);
  t.is(await readFile(join(target, 'program'), 'utf8'), '#!/bin/sh\n');
  await t.throwsAsync(readFile(join(target, 'link')), { code: 'ELOOP' });
  await t.throwsAsync(run(join(target, 'program'), []), { message: /Permission denied/u });
  await native.unmount(target, 0);
});

test('no link and no .. leads out of the disk', async (t) => {
  await using place = await mounted();
  const target = join(place.path, 'target');
  await mkdir(target);
  await mkdir(join(place.path, 'secret'));
  await mkdir(join(place.disk, 'inside/deep'), { recursive: true });
  const links = {
    absolute: '/',
    outside: place.path,
    up: '..',
    chain: '../../../../../../etc',
    proc: '/proc/self/root',
    hop: 'inside/../../secret',
    second: 'chain',
    loop: 'loop',
  };
  for (const [name, to] of Object.entries(links)) await symlink(to, join(place.disk, name));
  for (const path of [
    ...Object.keys(links),
    '..',
    '/',
    '/etc',
    'inside/../..',
    'up/secret',
    '.././disk',
  ]) {
    const error = await t.throwsAsync(
      native.attach(place.disk, path, target, 0, -1),
      undefined,
      path,
    );
    t.regex(String(Reflect.get(error, 'code')), /^(EXDEV|ELOOP)$/u, path);
  }
  await symlink('inside', join(place.disk, 'within'));
  await symlink('../inside/./deep', join(place.disk, 'inside/back'));
  for (const path of ['within/deep', 'inside/back', './inside']) {
    await native.attach(place.disk, path, target, 0, -1);
    await native.unmount(target, 0);
  }
  await writeFile(join(place.disk, 'file'), '');
  await t.throwsAsync(native.attach(place.disk, 'file', target, 0, -1), { code: 'ENOTDIR' });
  await t.throwsAsync(native.attach(place.disk, 'missing', target, 0, -1), { code: 'ENOENT' });
});

test('only a regular file beneath the disk is opened, nothing else is touched', async (t) => {
  await using place = await mounted();
  await writeFile(join(place.path, 'secret'), 'secret');
  await mkdir(join(place.disk, 'directory'));
  await writeFile(join(place.disk, 'directory/file'), 'content');
  await symlink('directory/../directory/file', join(place.disk, 'within'));
  await symlink('../secret', join(place.disk, 'outside'));
  await symlink('/proc/self/fd/0', join(place.disk, 'magic'));
  await run('mkfifo', [join(place.disk, 'pipe')]);
  await run('mknod', [join(place.disk, 'device'), 'c', '1', '5']);
  for (const path of ['directory/file', 'within']) {
    const fd = await native.openBeneath(place.disk, path, constants.O_RDONLY);
    t.is(readFileSync(fd, 'utf8'), 'content');
    closeSync(fd);
  }
  const refused = { directory: 'EISDIR', pipe: 'ENXIO', device: 'ENXIO', missing: 'ENOENT' };
  const leading = { outside: 'EXDEV', magic: 'EXDEV', '..': 'EXDEV', '/etc/passwd': 'EXDEV' };
  for (const [path, code] of Object.entries({ ...refused, ...leading, 'within/x': 'ENOTDIR' })) {
    await t.throwsAsync(native.openBeneath(place.disk, path, constants.O_RDONLY), { code }, path);
  }
});

test('a mount on an attached part of a disk does not appear on the disk itself', async (t) => {
  await using place = await mounted();
  await native.mount('', place.disk, '', MountFlag.shared, '');
  const target = join(place.path, 'target');
  await mkdir(target);
  await mkdir(join(place.disk, 'below'));
  await native.attach(place.disk, '', target, 0, -1);
  const below = join(target, 'below');
  await native.mount('tmpfs', below, 'tmpfs', flags, 'size=1m');
  t.deepEqual(await mountsBelow(place.path), [below, target, place.disk]);
});

test('another file system on the disk is not entered', async (t) => {
  await using place = await mounted();
  const target = join(place.path, 'target');
  await mkdir(target);
  await mkdir(join(place.disk, 'other'));
  await native.mount('tmpfs', join(place.disk, 'other'), 'tmpfs', flags, 'size=1m');
  await t.throwsAsync(native.attach(place.disk, 'other', target, 0, -1), { code: 'EXDEV' });
});

test('a pipe tells how much is unread', (t) => {
  const [readFd, writeFd] = native.pipe();
  t.is(native.unreadBytes(readFd), 0);
  writeSync(writeFd, 'twelve bytes');
  t.is(native.unreadBytes(readFd), 12);
  closeSync(writeFd);
  closeSync(readFd);
  t.throws(() => native.unreadBytes(readFd), { code: 'EBADF' });
});

test('mounts are listed with their true names, the deepest first', async (t) => {
  await using place = await mounted();
  const odd = join(place.disk, 'space tab\tline\nback\\slash 040 ü');
  await mkdir(odd);
  await native.mount('tmpfs', odd, 'tmpfs', flags, 'size=1m');
  t.deepEqual(await mountsBelow(place.path), [odd, place.disk]);
  t.deepEqual(await mountsBelow(`${place.disk}/space`), []);
});
