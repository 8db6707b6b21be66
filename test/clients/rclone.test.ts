/* Debian's rclone, set up as docs/object-api.md says. */
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { randomBytes } from 'node:crypto';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { exec } from '../helpers/disks.ts';
import { Stack } from '../helpers/stack.ts';
import { newDiskUser, Tools } from '../helpers/tools.ts';
import { MiB } from '../../shared/units.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  tools: Tools;
  disk: string;
  remote: string;
  rclone: (...args: string[]) => Promise<string>;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const { disk, identifier, token, s3Url } = await newDiskUser(stack, api);
  const tools = await Tools.in(stack);
  const rclone = (...args: string[]) => tools.output('rclone', ...args);
  await rclone(
    ...['config', 'create', 'berth', 's3', 'provider=Other', `access_key_id=${identifier}`],
    ...[`secret_access_key=${token}`, `endpoint=${s3Url}`, 'force_path_style=true'],
    'region=us-east-1',
  );
  await mkdir(tools.path('source/deep/empty'), { recursive: true });
  await writeFile(tools.path('source/small.txt'), 'small\n');
  await writeFile(tools.path('source/none'), '');
  await writeFile(tools.path('source/deep/a b+c%(1)ü.txt'), 'odd\n');
  await writeFile(tools.path('source/deep/large.bin'), randomBytes(12 * MiB));
  Object.assign(t.context, { api, tools, rclone, disk, remote: `berth:${disk}` });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

test('copy, check, list, and copy back', async (t) => {
  const { rclone, tools, remote, api, disk } = t.context;
  // Above the cut-off an upload goes in parts.
  await rclone('copy', '--s3-upload-cutoff=8M', '--s3-chunk-size=5M', 'source', `${remote}/copy`);
  await rclone('check', 'source', `${remote}/copy`);
  await rclone('check', '--download', 'source', `${remote}/copy`);
  const listed = await rclone('lsf', '-R', '--files-only', `${remote}/copy`);
  t.deepEqual(listed.trim().split('\n').sort(), [
    'deep/a b+c%(1)ü.txt',
    'deep/large.bin',
    'none',
    'small.txt',
  ]);
  t.is((await exec(api, disk, 'cat copy/deep/a*')).stdout, 'odd\n');
  await exec(api, disk, 'echo from exec > copy/given');
  await rclone('check', '--download', 'source', `${remote}/copy`, '--one-way');
  await rclone('copy', `${remote}/copy`, 'back');
  t.is(await tools.output('cat', 'back/given'), 'from exec\n');
  const [sent, received] = await Promise.all(
    ['source', 'back'].map((each) => readFile(tools.path(each, 'deep/large.bin'))),
  );
  t.true(sent?.equals(received ?? Buffer.of()));
  t.is(await rclone('lsf', 'berth:'), `${disk}/\n`);
});

test('sync takes away what the source has no more, and goes on from there', async (t) => {
  const { rclone, remote, tools } = t.context;
  await mkdir(tools.path('synced'));
  await writeFile(tools.path('synced/stays'), 'one');
  await writeFile(tools.path('synced/goes'), 'two');
  await rclone('sync', 'synced', `${remote}/sync`);
  await rm(tools.path('synced/goes'));
  await writeFile(tools.path('synced/stays'), 'three');
  await writeFile(tools.path('synced/comes'), 'four');
  await rclone('sync', 'synced', `${remote}/sync`);
  t.is(await rclone('lsf', `${remote}/sync`), 'comes\nstays\n');
  t.is(await rclone('cat', `${remote}/sync/stays`), 'three');
  await rclone('moveto', `${remote}/sync/stays`, `${remote}/sync/moved`);
  t.is(await rclone('lsf', `${remote}/sync`), 'comes\nmoved\n');
  await rclone('purge', `${remote}/sync`);
  t.is(await rclone('lsf', '-R', '--files-only', remote, '--include', '/sync/**'), '');
});

test('a mount is read and written like a directory', async (t) => {
  const { tools, api, disk, remote } = t.context;
  const directory = tools.path('mounted');
  {
    const flags = ['--vfs-cache-mode=writes', '--vfs-write-back=0s', '--dir-cache-time=0s'];
    await using _mount = await tools.serveMount(
      ['rclone', 'mount', ...flags, remote, directory],
      directory,
    );
    await exec(api, disk, 'mkdir mount; echo from exec > mount/given');
    t.is(await tools.output('cat', 'mounted/mount/given'), 'from exec\n');
    await tools.output('cp', 'source/deep/large.bin', 'mounted/mount/large.bin');
    await tools.output('cmp', 'source/deep/large.bin', 'mounted/mount/large.bin');
    await tools.output('mv', 'mounted/mount/given', 'mounted/mount/renamed');
    await tools.output('mkdir', 'mounted/mount/made');
    t.is(await tools.output('ls', 'mounted/mount'), 'large.bin\nmade\nrenamed\n');
  }
  const seen = await exec(api, disk, 'cat mount/renamed; stat -c %s mount/large.bin');
  t.is(seen.stdout, `from exec\n${12 * MiB}\n`);
});
