/* Debian's s3cmd and curl, called as docs/object-api.md says. */
import { randomBytes } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { exec } from '../helpers/disks.ts';
import { Stack } from '../helpers/stack.ts';
import { curlSigned, type DiskUser, newDiskUser, Tools } from '../helpers/tools.ts';
import { MiB } from '../../shared/units.ts';

interface Context {
  stack: Stack;
  api: ApiClient;
  user: DiskUser;
  tools: Tools;
  s3cmd: (...args: string[]) => Promise<string>;
  curl: (...args: string[]) => Promise<string>;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const user = await newDiskUser(stack, api);
  const { identifier, token, s3Url } = user;
  const tools = await Tools.in(stack);
  const host = s3Url.replace('http://', '');
  const access = [`--access_key=${identifier}`, `--secret_key=${token}`];
  const where = ['--no-ssl', `--host=${host}`, `--host-bucket=${host}`];
  const s3cmd = (...args: string[]) => tools.output('s3cmd', ...access, ...where, ...args);
  const curl = (...args: string[]) => tools.output('curl', ...curlSigned(user), ...args);
  await mkdir(tools.path('directory'));
  await writeFile(tools.path('directory/a b+ü.txt'), 'small\n');
  await writeFile(tools.path('large.bin'), randomBytes(17 * MiB));
  Object.assign(t.context, { api, user, tools, s3cmd, curl });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

test('s3cmd: put, list, get, info and delete', async (t) => {
  const { s3cmd, tools, api, user } = t.context;
  const bucket = `s3://${user.disk}`;
  // Above 15 MiB it uploads in parts.
  await s3cmd('put', 'large.bin', `${bucket}/cmd/large.bin`);
  await s3cmd('get', `${bucket}/cmd/large.bin`, 'back.bin');
  await tools.output('cmp', 'large.bin', 'back.bin');
  t.regex(await s3cmd('ls', `${bucket}/cmd/`), /17825792\s+s3:\S+\/cmd\/large\.bin/u);
  t.regex(await s3cmd('info', `${bucket}/cmd/large.bin`), /File size:\s+17825792/u);
  await s3cmd('put', 'directory/a b+ü.txt', `${bucket}/cmd/a b+ü.txt`);
  await s3cmd('cp', `${bucket}/cmd/a b+ü.txt`, `${bucket}/cmd/copy`);
  t.is((await exec(api, user.disk, 'cat cmd/a* cmd/copy')).stdout, 'small\nsmall\n');
  await s3cmd('del', `${bucket}/cmd/large.bin`);
  await s3cmd('mv', `${bucket}/cmd/copy`, `${bucket}/cmd/moved`);
  t.is((await exec(api, user.disk, 'ls cmd')).stdout, 'a b+ü.txt\nmoved\n');
});

test('s3cmd: sync there and back', async (t) => {
  const { s3cmd, tools, user, api } = t.context;
  const bucket = `s3://${user.disk}/sync/`;
  await s3cmd('sync', 'directory/', bucket);
  t.is(await s3cmd('sync', 'directory/', bucket), '');
  await mkdir(tools.path('synced'));
  await exec(api, user.disk, 'echo from exec > sync/given');
  await s3cmd('sync', bucket, 'synced/');
  t.is((await tools.run('diff', ['-r', 'directory', 'synced'])).stdout, 'Only in synced: given\n');
  t.is(await tools.output('cat', 'synced/given'), 'from exec\n');
});

test('curl: put, get, part of an object, head, list and delete', async (t) => {
  const { curl, tools, user } = t.context;
  const url = `${user.s3Url}/${user.disk}/curl/file`;
  await curl('-f', '-T', 'large.bin', url);
  await curl('-f', '-o', 'fetched.bin', url);
  await tools.output('cmp', 'large.bin', 'fetched.bin');
  await curl('-f', '--data-binary', 'by curl', '-X', 'PUT', url);
  t.is(await curl('-f', '-r', '3-', url), 'curl');
  t.regex(await curl('-f', '-I', url), /content-length: 7/iu);
  const list = `${user.s3Url}/${user.disk}?list-type=2&prefix=curl%2F`;
  t.regex(await curl('-f', list), /<Key>curl\/file<\/Key>/u);
  await curl('-f', '-X', 'DELETE', url);
  t.is(await curl('-o', '/dev/null', '-w', '%{http_code}', url), '404');
});

test('curl: an API key reaches the disk at the address of control too', async (t) => {
  const { api, tools, user } = t.context;
  const url = `${api.baseUrl}/${user.disk}/by-key`;
  const signed = ['-fsS', '-H', `Authorization: ${api.key}`];
  await tools.output('curl', ...signed, '-T', 'large.bin', url);
  await tools.output('curl', ...signed, '-o', 'by-key.bin', url);
  t.is(await tools.output('cmp', 'large.bin', 'by-key.bin'), '');
});
