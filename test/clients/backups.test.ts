/* Debian's restic and duplicity, called as docs/object-api.md says: backup, verify and restore. */
import { randomBytes } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { Stack } from '../helpers/stack.ts';
import { type DiskUser, newDiskUser, Tools } from '../helpers/tools.ts';
import { MiB } from '../../shared/units.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; user: DiskUser; tools: Tools }>;

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const user = await newDiskUser(stack, api);
  const tools = await Tools.in(stack, {
    AWS_ACCESS_KEY_ID: user.identifier,
    AWS_SECRET_ACCESS_KEY: user.token,
    AWS_DEFAULT_REGION: 'us-east-1',
    RESTIC_PASSWORD: 'secret',
    PASSPHRASE: 'secret',
  });
  await mkdir(tools.path('source/deep'), { recursive: true });
  await writeFile(tools.path('source/deep/a b+ü.txt'), 'small\n');
  await writeFile(tools.path('source/large.bin'), randomBytes(6 * MiB));
  Object.assign(t.context, { api, user, tools });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

test('restic backs up, verifies all of its data, restores and prunes', async (t) => {
  const { tools, user } = t.context;
  const repository = `s3:${user.s3Url}/${user.disk}/restic`;
  const restic = (...args: string[]) =>
    tools.output('restic', '--no-cache', '-r', repository, '-o', 's3.bucket-lookup=path', ...args);
  await restic('init');
  await restic('backup', 'source');
  await writeFile(tools.path('source/more.txt'), 'more\n');
  await restic('backup', 'source');
  t.regex(await restic('check', '--read-data'), /no errors were found/u);
  await restic('restore', 'latest', '--target', 'restic-back');
  t.is(await tools.output('diff', '-r', 'source', 'restic-back/source'), '');
  await restic('forget', '--keep-last', '1', '--prune');
  t.regex(await restic('check', '--read-data'), /no errors were found/u);
});

test('duplicity backs up, verifies and restores', async (t) => {
  const { tools, user } = t.context;
  await mkdir(tools.path('kept'));
  await writeFile(tools.path('kept/large.bin'), randomBytes(3 * MiB));
  await writeFile(tools.path('kept/a b.txt'), 'small\n');
  const target = `boto3+s3://${user.disk}/duplicity`;
  const duplicity = (...args: string[]) =>
    tools.output('duplicity', '--s3-endpoint-url', user.s3Url, '--no-encryption', ...args);
  await duplicity('full', 'kept', target);
  await writeFile(tools.path('kept/more.txt'), 'more\n');
  await duplicity('incremental', 'kept', target);
  t.regex(await duplicity('verify', '--compare-data', target, 'kept'), / 0 differences found/u);
  await duplicity('restore', target, 'duplicity-back');
  t.is(await tools.output('diff', '-r', 'kept', 'duplicity-back'), '');
});
