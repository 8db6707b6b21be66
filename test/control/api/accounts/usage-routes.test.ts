import type { Static } from 'typebox';
import type { Usage } from '../../../../shared/schemas/usage.ts';
import { createDisk, exec } from '../../../helpers/disks.ts';
import {
  containerSettings,
  createSandbox,
  execIn,
  sandboxPath,
} from '../../../helpers/sandboxes.ts';
import type { ApiClient } from '../../../helpers/api.ts';
import { stackTest } from '../../../helpers/stack-test.ts';
import { waitFor } from '../../../helpers/wait.ts';

const test = stackTest(containerSettings());

const read = (api: ApiClient): Promise<Static<typeof Usage>> => api.data('GET', '/api/usage');

test('calls and commands are counted', async (t) => {
  const api = await t.context.stack.newClient();
  const { id } = await createDisk(api);
  await exec(api, id, 'true');
  await exec(api, id, 'false');
  await api.data('POST', '/api/exec', { command: 'true', disks: { a: id } });
  await api.call('POST', `/api/disks/${id}/exec`, { command: '' });
  const before = await waitFor('the counts', async () => {
    const usage = await read(api);
    return usage.execs >= 3 && usage.requests >= 5 ? usage : undefined;
  });
  t.is(before.execs, 3);
  t.like(before, { region: 'local-test', vcpuSeconds: 0, memoryGibSeconds: 0 });
  t.is(before.month, new Date().toISOString().slice(0, 7));
});

test('processors and memory count while a sandbox holds them, and no longer', async (t) => {
  const api = await t.context.stack.newClient();
  const askedAt = performance.now();
  const { sandbox_id: sid } = await createSandbox(api, { vcpu_count: 2, mem_size_mib: 512 });
  const ranAt = performance.now();
  await execIn(api, sid, 'true');
  const stopAt = performance.now();
  await api.data('POST', `${sandboxPath(sid)}/stop`);
  await waitFor('the sandbox to stop', async () => {
    const { status } = await api.data<{ status: string }>('GET', sandboxPath(sid));
    return status === 'stopped';
  });
  const stoppedAt = performance.now();
  const [least, most] = [(stopAt - ranAt) / 1000, (stoppedAt - askedAt) / 1000];
  const measured = await waitFor('the measurement', async () => {
    const usage = await read(api);
    return usage.vcpuSeconds >= 2 * least && usage.execs > 0 ? usage : undefined;
  });
  t.true(measured.vcpuSeconds <= 2 * most, `${measured.vcpuSeconds} of ${2 * most}`);
  t.true(Math.abs(measured.memoryGibSeconds * 4 - measured.vcpuSeconds) < 0.001);
  t.is(measured.execs, 1);
});

test('limits are those that the operator has set, and nothing else', async (t) => {
  const { stack } = t.context;
  const api = await stack.newClient();
  t.deepEqual((await read(api)).limits, {});
  await api.call('DELETE', '/api/tokens/none');
  const [event] = await api.data<{ accountId: string }[]>('GET', '/api/activity');
  const { accountId = '' } = event ?? {};
  const { accountLimits } = await stack.openDirectory();
  await accountLimits.change(accountId, { vcpus: 8, diskBytes: 1024, requestsPerSecond: 500 });
  t.deepEqual((await read(api)).limits, { vcpus: 8, diskBytes: 1024, requestsPerSecond: 500 });
  await accountLimits.change(accountId, { vcpus: null });
  t.deepEqual((await read(api)).limits, { diskBytes: 1024, requestsPerSecond: 500 });
});

test('nothing is known of other months, nor told to other accounts', async (t) => {
  const api = await t.context.stack.newClient();
  const then = await api.data<object>('GET', '/api/usage?month=2020-02');
  t.like(then, { month: '2020-02', requests: 0, execs: 0, storageByteHours: 0 });
  for (const month of ['2020', '2020-13', '2020-2', 'now']) {
    t.is((await api.call('GET', `/api/usage?month=${month}`)).status, 400, month);
  }
});
