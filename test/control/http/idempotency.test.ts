import { randomUUID } from 'node:crypto';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../../helpers/api.ts';
import { Stack } from '../../helpers/stack.ts';
import { waitFor } from '../../helpers/wait.ts';

const test = anyTest as TestFn<{ stack: Stack; api: ApiClient; diskId: string }>;

interface ExecData {
  stdout: string;
}

const withKey = (key: string = randomUUID()) => ({ 'idempotency-key': key });

test.before(async (t) => {
  t.context.stack = await Stack.start();
  t.context.api = await t.context.stack.newClient();
  const disk = await t.context.api.data<{ id: string }>('POST', '/api/disks', { name: 'work' });
  t.context.diskId = disk.id;
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

test('a repeated exec gets the first answer and does not run again', async (t) => {
  const { api, diskId } = t.context;
  const headers = withKey();
  const body = { command: 'echo x >> twice; cat twice' };
  const first = await api.call('POST', `/api/disks/${diskId}/exec`, body, headers);
  const second = await api.call('POST', `/api/disks/${diskId}/exec`, body, headers);
  t.is((first.body.data as ExecData).stdout, 'x\n');
  t.deepEqual(second.body, first.body);
  t.is(first.headers.get('idempotency-replayed'), null);
  t.is(second.headers.get('idempotency-replayed'), 'true');
});

test('requests with one key at the same time run once and all get the answer', async (t) => {
  const { api, diskId } = t.context;
  const headers = withKey();
  const body = { command: 'sleep 0.3; echo x >> once; wc -l < once' };
  const replies = await Promise.all(
    Array.from({ length: 5 }, () => api.call('POST', `/api/disks/${diskId}/exec`, body, headers)),
  );
  t.deepEqual(
    replies.map((reply) => (reply.body.data as ExecData).stdout),
    Array.from({ length: 5 }, () => '1\n'),
  );
});

test('the same key with another body or path is a conflict', async (t) => {
  const { api, diskId } = t.context;
  const headers = withKey();
  await api.call('POST', `/api/disks/${diskId}/exec`, { command: 'true' }, headers);
  const body = await api.call('POST', `/api/disks/${diskId}/exec`, { command: 'false' }, headers);
  t.is(body.status, 409);
  t.is(body.body.code, 'idempotency_conflict');
  const path = await api.call('POST', '/api/tokens', { name: 'x' }, headers);
  t.is(path.status, 409);
});

test('keys of different accounts are different keys', async (t) => {
  const { api, stack } = t.context;
  const headers = withKey();
  const other = await stack.newClient();
  const first = await api.call('POST', '/api/tokens', { name: 'x' }, headers);
  const second = await other.call('POST', '/api/tokens', { name: 'x' }, headers);
  t.is(second.status, 201);
  t.notDeepEqual(first.body.data, second.body.data);
});

test('a replay repeats a secret, which Redis holds only sealed', async (t) => {
  const { api, stack } = t.context;
  const headers = withKey();
  const first = await api.call('POST', '/api/tokens', { name: 'secret' }, headers);
  const second = await api.call('POST', '/api/tokens', { name: 'secret' }, headers);
  t.deepEqual(second.body, first.body);
  const { token } = first.body.data as { token: string };
  const redis = await stack.redisClient();
  const keys = await redis.keys('*:{idempotency}:answer:*');
  const values = await Promise.all(keys.map((key) => redis.get(key)));
  t.true(values.length > 0);
  t.false(values.some((value) => value?.includes(token)));
});

test('a call whose answer was too large to keep is not run again', async (t) => {
  const { api, diskId } = t.context;
  const headers = withKey();
  const path = `/api/disks/${diskId}/exec`;
  const body = { command: 'echo x >> large; head -c 2000000 /dev/zero | tr "\\0" a' };
  const first = await api.call('POST', path, body, headers);
  t.is(first.status, 200);
  const second = await api.call('POST', path, body, headers);
  t.is(second.status, 409);
  t.is(second.body.code, 'idempotency_answer_lost');
  const count = await api.data<ExecData>('POST', path, { command: 'wc -l < large' });
  t.is(count.stdout, '1\n');
});

test('a refused request leaves its key free', async (t) => {
  const { api, diskId } = t.context;
  const headers = withKey();
  const missing = `/api/disks/dsk-${'0'.repeat(16)}/exec`;
  t.is((await api.call('POST', missing, { command: 'true' }, headers)).status, 404);
  const bad = await api.call('POST', `/api/disks/${diskId}/exec`, { command: '' }, headers);
  t.is(bad.status, 400);
  const good = await api.call('POST', `/api/disks/${diskId}/exec`, { command: 'true' }, headers);
  t.is(good.status, 200);
});

test('hanging up does not end a request with a key', async (t) => {
  const { api, diskId } = t.context;
  const headers = withKey();
  const path = `/api/disks/${diskId}/exec`;
  const body = { command: 'touch begun; sleep 3; echo done | tee finished' };
  const hangUp = new AbortController();
  const first = api.call('POST', path, body, headers, hangUp.signal);
  await waitFor('the command to begin', async () => {
    const look = await api.data<ExecData>('POST', path, { command: 'ls' });
    return look.stdout.includes('begun');
  });
  hangUp.abort();
  await t.throwsAsync(first);
  const again = await api.call('POST', path, body, headers);
  t.is((again.body.data as ExecData).stdout, 'done\n');
  t.is(again.headers.get('idempotency-replayed'), 'true');
});

for (const key of ['', 'x'.repeat(256), 'white space', 'ümlaut']) {
  test(`the key ${key.slice(0, 12)} is refused`, async (t) => {
    const headers = { 'idempotency-key': Buffer.from(key).toString('latin1') };
    const reply = await t.context.api.call('POST', '/api/tokens', { name: 'x' }, headers);
    t.is(reply.status, 400);
    t.is(reply.body.code, 'bad_request');
  });
}
