/* A disk's two directories: made once, whatever the root held before, and however often cut off. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, chown, mkdir, open, readdir, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { prepareLayout } from '../../../agent/disks/disk-layout.ts';
import { mountImage, unmountImage } from '../../../agent/disks/mount.ts';
import { native } from '../../../agent/native/native.ts';
import { run } from '../../../agent/system/spawn.ts';
import { FIRST_LOOP } from '../../helpers/mounted-disk.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

const MARKER = 'trusted.berth.layout';
const names = async (path: string): Promise<string[]> => (await readdir(path)).toSorted();

/** A mounted file system of the old layout: callers own its root. */
async function oldDisk(): Promise<AsyncDisposable & { mount: string; image: string }> {
  const directory = await temporaryDirectory();
  const image = join(directory.path, 'image');
  const mount = join(directory.path, 'mount');
  await (await open(image, 'wx')).close();
  await run('mke2fs', ['-q', '-t', 'ext4', '-F', '-I', '256', image, '16M']);
  await mountImage(image, mount, FIRST_LOOP);
  await run('rmdir', [join(mount, 'lost+found')]);
  return {
    mount,
    image,
    [Symbol.asyncDispose]: async () => {
      await unmountImage(image, mount);
      await directory[Symbol.asyncDispose]();
    },
  };
}

/** Entries that carry our own names, and others that are easily lost. */
async function fill(mount: string): Promise<string[]> {
  await mkdir(join(mount, 'contents/contents'), { recursive: true });
  await writeFile(join(mount, 'contents/file'), 'x');
  await writeFile(join(mount, 'uploads'), 'a file of the caller');
  await symlink('/etc', join(mount, 'link'));
  await run('mkfifo', [join(mount, '.pipe')]);
  await writeFile(Buffer.concat([Buffer.from(`${mount}/`), Buffer.from([0xff, 0x0a])]), 'x');
  for (let index = 0; index < 300; index += 1) await writeFile(join(mount, `-${index}`), '');
  await chown(mount, 1000, 2000);
  await chmod(mount, 0o3751);
  return names(mount);
}

test('what callers had in the root is in contents, whose owner and mode it has', async (t) => {
  await using disk = await oldDisk();
  const before = await fill(disk.mount);
  const { contents, uploads } = await prepareLayout(disk.mount);
  t.deepEqual(await names(disk.mount), ['contents', 'uploads']);
  t.deepEqual(await names(contents), before);
  t.deepEqual(await names(uploads), []);
  t.deepEqual(await names(join(contents, 'contents')), ['contents', 'file']);
  const { uid, gid, mode } = await stat(contents);
  t.deepEqual([uid, gid, mode & 0o7777], [1000, 2000, 0o3751]);
  for (const path of [disk.mount, uploads]) {
    const found = await stat(path);
    t.deepEqual([found.uid, found.gid, found.mode & 0o7777], [0, 0, 0o700]);
  }
});

test('a disk that has its layout is left alone, whatever callers call their files', async (t) => {
  await using disk = await oldDisk();
  const { contents } = await prepareLayout(disk.mount);
  await mkdir(join(contents, 'contents'));
  await mkdir(join(contents, 'uploads'));
  await prepareLayout(disk.mount);
  t.deepEqual(await names(contents), ['contents', 'uploads']);
  t.deepEqual(await names(disk.mount), ['contents', 'uploads']);
});

test('a layout of a later version is refused', async (t) => {
  await using disk = await oldDisk();
  const root = await open(disk.mount);
  await native.setAttribute(root.fd, MARKER, Buffer.from('contents-2'));
  await root.close();
  await t.throwsAsync(prepareLayout(disk.mount), { message: /unknown layout/u });
});

test('being killed at any system call of it does no harm', async (t) => {
  await using disk = await oldDisk();
  const before = await fill(disk.mount);
  const module = new URL('../../../agent/disks/disk-layout.ts', import.meta.url).href;
  const target = JSON.stringify(disk.mount);
  // Every call of the file system counts down to the end of the process.
  for (let calls = 1, isDone = false; !isDone; calls = Math.ceil(calls * 1.3)) {
    const script = `
      import { createRequire, syncBuiltinESMExports } from 'node:module';
      const fs = createRequire('/')('node:fs/promises');
      let left = ${calls};
      for (const name of ['mkdir', 'rename', 'chown', 'chmod', 'stat', 'lstat', 'opendir']) {
        const call = fs[name];
        fs[name] = async (...args) => {
          if (left-- === 0) process.kill(process.pid, 'SIGKILL');
          return call(...args);
        };
      }
      syncBuiltinESMExports();
      const { prepareLayout } = await import('${module}');
      await prepareLayout(${target});`;
    const child = spawn(process.execPath, ['--input-type=module', '--eval', script], {
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    const [code] = (await once(child, 'exit')) as [number | null];
    isDone = code === 0;
    if (!isDone) t.is(code, null);
  }
  const contents = join(disk.mount, 'contents');
  t.deepEqual(await names(contents), before);
  t.deepEqual(await names(disk.mount), ['contents', 'uploads']);
  const { uid, gid, mode } = await stat(contents);
  t.deepEqual([uid, gid, mode & 0o7777], [1000, 2000, 0o3751]);
});
