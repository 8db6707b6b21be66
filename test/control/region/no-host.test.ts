import test from 'ava';
import type { Disk } from '../../../shared/schemas/disk.ts';
import { createDisk, exec, newName } from '../../helpers/disks.ts';
import { Stack } from '../../helpers/stack.ts';
import { waitFor } from '../../helpers/wait.ts';

test('calls that need a host answer 503 until there is one', async (t) => {
  const stack = await Stack.start();
  t.teardown(() => stack.stop());
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  await exec(api, id, 'echo kept > file');
  t.is(await stack.agent.stop(), 0);
  await waitFor('the host to be gone', async () => {
    const disk = await api.data<Disk>('GET', `/api/disks/${id}`);
    return disk.fsHandlerStatus === 'idle';
  });

  const name = newName();
  const calls: [string, string, object?][] = [
    ['POST', `/api/disks/${id}/exec`, { command: 'true' }],
    ['POST', '/api/disks', { name }],
    ['PUT', `/api/disks/${id}/allowed-ips`, { allowedIps: ['10.0.0.1'] }],
    ['POST', `/api/disks/${id}/users`, { type: 'cloudsts', principal: 'role' }],
  ];
  for (const [method, path, body] of calls) {
    const reply = await api.call(method, path, body);
    t.is(reply.status, 503, path);
    t.is(reply.body.code, 'no_capacity');
    t.regex(reply.headers.get('retry-after') ?? '', /^[1-9]\d?$/u);
  }
  t.is((await api.call('GET', '/api/disks')).status, 200);
  t.is((await fetch(`${stack.baseUrl}/readyz`)).status, 200);

  await stack.startAgent();
  await waitFor('a command to run', async () => {
    const reply = await api.call('POST', `/api/disks/${id}/exec`, { command: 'true' });
    return reply.status === 200;
  });
  t.is((await exec(api, id, 'cat file')).stdout, 'kept\n');
  for (const [method, path, body] of calls) {
    t.true((await api.call(method, path, body)).body.success, path);
  }
  t.is((await createDisk(api, { name })).status, 'available');
});
