/* Debian's s3fs, mounted as docs/object-api.md says. */
import { randomBytes } from 'node:crypto';
import { chmod, writeFile } from 'node:fs/promises';
import test from 'ava';
import { exec } from '../helpers/disks.ts';
import { Stack } from '../helpers/stack.ts';
import { newDiskUser, Tools } from '../helpers/tools.ts';
import { MiB } from '../../shared/units.ts';

let stack: Stack;

test.before(async () => {
  stack = await Stack.start();
});

test.after.always(async () => {
  await stack.stop();
});

test('a mount is read and written like a directory', async (t) => {
  const api = await stack.newClient();
  const { disk, identifier, token, s3Url } = await newDiskUser(stack, api);
  const tools = await Tools.in(stack);
  await writeFile(tools.path('passwd'), `${identifier}:${token}`);
  await chmod(tools.path('passwd'), 0o600);
  await writeFile(tools.path('large.bin'), randomBytes(25 * MiB));
  await exec(api, disk, 'mkdir given; echo from exec > given/file');
  const directory = tools.path('mounted');
  {
    const options = ['-o', `passwd_file=${tools.path('passwd')}`, '-o', `url=${s3Url}`];
    await using _mount = await tools.serveMount(
      [
        's3fs',
        disk,
        directory,
        '-f',
        ...options,
        '-o',
        'use_path_request_style',
        '-o',
        'enable_content_md5',
      ],
      directory,
    );
    t.is(await tools.output('cat', 'mounted/given/file'), 'from exec\n');
    await tools.output('mkdir', 'mounted/made');
    await tools.output('cp', 'large.bin', 'mounted/made/large.bin');
    await tools.output('cmp', 'large.bin', 'mounted/made/large.bin');
    await tools.output('cp', 'passwd', 'mounted/made/first');
    await tools.output('mv', 'mounted/made/first', 'mounted/made/second');
    await tools.output('sh', '-c', 'echo more >> mounted/made/second');
    await tools.output('rm', 'mounted/given/file');
    await tools.output('mkdir', 'mounted/made/gone');
    await tools.output('rmdir', 'mounted/made/gone');
    t.is(await tools.output('ls', 'mounted/made'), 'large.bin\nsecond\n');
  }
  const seen = await exec(
    api,
    disk,
    'cat made/second; stat -c %s made/large.bin; find . -type f | sort',
  );
  t.is(seen.stdout, `${identifier}:${token}more\n${25 * MiB}\n./made/large.bin\n./made/second\n`);
});
