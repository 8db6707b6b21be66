import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { Stack } from '../helpers/stack.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; diskId: string }>;

interface ExecData {
  exitCode: number;
  stdout: string;
  stderr: string;
  timing: { totalMs: number; queueMs: number; executeMs: number };
}

test.before(async (t) => {
  t.context.stack = await Stack.start();
  t.context.api = await t.context.stack.newClient();
  const disk = await t.context.api.data<{ id: string }>('POST', '/api/disks', { name: 'work' });
  t.context.diskId = disk.id;
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

test('a command runs on the disk and its result comes back', async (t) => {
  const { api, diskId } = t.context;
  const result = await api.data<ExecData>('POST', `/api/disks/${diskId}/exec`, {
    command: 'pwd; echo to-stderr >&2; echo kept > file; exit 3',
  });
  t.is(result.exitCode, 3);
  t.is(result.stdout, '/mnt/service\n');
  t.is(result.stderr, 'to-stderr\n');
  t.true(result.timing.totalMs >= result.timing.executeMs);
  const again = await api.data<ExecData>('POST', `/api/disks/${diskId}/exec`, {
    command: 'cat file /mnt/archil/file',
  });
  t.is(again.stdout, 'kept\nkept\n');
});
