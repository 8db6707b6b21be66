/* Two hosts, of which one is lost while it creates a sandbox. Sandboxes are containers. */
import { join } from 'node:path';
import {
  type ApiSandbox,
  containerSettings,
  Failpoints,
  outputOf,
  removeSandbox,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import type { ApiClient } from '../helpers/api.ts';
import { stackTest } from '../helpers/stack-test.ts';
import { waitFor } from '../helpers/wait.ts';

const { serial: test } = stackTest(containerSettings(), async ({ stack }) => {
  const points = new Failpoints(join(stack.directory, 'failpoint'));
  const losing = await stack.addAgent(points.settings);
  await losing.start();
  return { points, losing };
});

/** Creates a sandbox, coming again after a 503 as clients are to. @returns its id */
const create = (api: ApiClient): Promise<string> =>
  waitFor('a sandbox', async () => {
    const reply = await api.call<{ data: ApiSandbox }>('POST', '/api/sandboxes', {
      mem_size_mib: 256,
    });
    return reply.status === 202 && reply.body.data.sandbox_id;
  });

test('a sandbox that was acknowledged while a host was lost stays when that host is back', async (t) => {
  const { api, points, losing } = t.context;
  const ids: string[] = [];
  await points.arm('after journal create');
  try {
    // The other host may be the better one for the first of them.
    await waitFor('the host to be lost', async () => {
      ids.push(await create(api));
      return !losing.daemon.isRunning;
    });
  } finally {
    await points.disarm();
    if (!losing.daemon.isRunning) await losing.start();
  }
  await waitFor('the host to have removed what it had begun', async () =>
    (await losing.daemon.readLog()).includes('sandbox:deleted'),
  );
  for (const id of ids) {
    t.is((await settledSandbox(api, id)).status, 'running');
    t.is(await outputOf(api, id, 'echo here'), 'here\n');
    await removeSandbox(api, id);
  }
});
