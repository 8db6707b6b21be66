/*
 * Many sandboxes at once, twenty with BERTH_TEST_FULL=1: they are separate and leave nothing
 * behind.
 */
import { readdir } from 'node:fs/promises';
import test from 'ava';
import { paths } from '../../agent/system/paths.ts';
import {
  type ApiSandbox,
  commandSandbox,
  createSandbox,
  machinesOf,
  outputOf,
  sandboxPath,
  sandboxSettings,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { isFull } from '../helpers/full.ts';

const COUNT = isFull ? 20 : 6;

test(`${COUNT} sandboxes are made, run, stopped and deleted together`, async (t) => {
  t.timeout(10 * 60_000);
  const stack = await Stack.start({
    ...sandboxSettings(),
    SANDBOX_MEMORY_MIB: String(COUNT * 600),
  });
  try {
    const api = await stack.newClient();
    const all = await Promise.all(Array.from({ length: COUNT }, () => createSandbox(api)));
    const ids = all.map(({ sandbox_id: id }) => id);
    t.is((await machinesOf(ids)).length, COUNT);
    const identities = await Promise.all(
      ids.map((id) => outputOf(api, id, 'cat /etc/machine-id; hostname')),
    );
    for (const [index, identity] of identities.entries()) {
      t.regex(
        identity,
        new RegExp(`^${ids[index]?.replaceAll('-', '')}\n${all[index]?.name}\n`, 'u'),
      );
    }
    const { sandboxes } = await api.data<{ sandboxes: ApiSandbox[] }>('GET', '/api/sandboxes');
    t.is(sandboxes.filter(({ status }) => status === 'running').length, COUNT);

    const admin = `http://127.0.0.1:${stack.environment['AGENT_ADMIN_PORT']}`;
    const figures = await (await fetch(`${admin}/metrics`)).text();
    t.regex(figures, new RegExp(`^berth_sandboxes\\{.*state="running".*\\} ${COUNT}$`, 'mu'));
    const used = /^berth_sandbox_capacity_vcpus\{part="used".*\} (\d+)$/mu.exec(figures);
    t.is(Number(used?.[1]), COUNT);

    await Promise.all(ids.map((id) => commandSandbox(api, id, 'stop')));
    const stopped = await Promise.all(ids.map((id) => settledSandbox(api, id)));
    t.deepEqual([...new Set(stopped.map((each) => each.exit_reason))], ['stopped']);
    const deleted = await Promise.all(ids.map((id) => api.call('DELETE', sandboxPath(id))));
    t.true(deleted.every(({ status }) => status === 204));
    t.deepEqual(await machinesOf(ids), []);
    const dataDir = stack.environment['AGENT_DATA_DIR'] ?? '';
    t.deepEqual(await readdir(paths.sandboxes(dataDir)), []);
    t.deepEqual((await api.data<{ sandboxes: object[] }>('GET', '/api/sandboxes')).sandboxes, []);
  } finally {
    await stack.stop(); // Stopping the stack fails when anything is left on the host.
  }
});
