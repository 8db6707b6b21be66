/* Debian's boto3. */
import test from 'ava';
import { exec } from '../helpers/disks.ts';
import { Stack } from '../helpers/stack.ts';
import { newDiskUser, Tools } from '../helpers/tools.ts';

const program = new URL('../fixtures/boto3-client.py', import.meta.url).pathname;

let stack: Stack;

test.before(async () => {
  stack = await Stack.start();
});

test.after.always(async () => {
  await stack.stop();
});

test('transfers in parts, pages, presigned URLs, syncing and bulk deletion', async (t) => {
  const api = await stack.newClient();
  const { disk, identifier, token, s3Url } = await newDiskUser(stack, api);
  const tools = await Tools.in(stack);
  const printed = await tools.output('python3', program, s3Url, disk, identifier, token);
  t.deepEqual(JSON.parse(printed), {
    transfer: { same: true, type: 'a/b', metadata: { who: 'me' }, parts: '4' },
    pages: Array.from({ length: 12 }, (_, i) => `pages/${String(i).padStart(2, '0')} ü&`),
    presigned: 'linked',
    sync: [
      [['a', 'b/c', 'b/d ü', 'b/e/f', 'g'], []],
      [[], []],
      [['a', 'b/c'], ['g']],
    ],
    deleted: { deleted: 12, left: 0 },
    missing: 'NoSuchKey',
    acl: 'NotImplemented',
  });
  t.is((await exec(api, disk, 'cat by*/*; stat -c %s up/large.bin')).stdout, 'linked22020096\n');
});
