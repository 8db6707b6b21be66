/* All parts of a cluster are replaced one by one, while callers go on. */
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../helpers/api.ts';
import { TestCluster } from '../helpers/cluster.ts';
import { ClusterLoad } from '../helpers/cluster-load.ts';
import { containerSettings } from '../helpers/sandboxes.ts';

interface Context {
  readonly cluster: TestCluster;
  readonly api: ApiClient;
}
const test = anyTest.serial as TestFn<Context>;

test.before(async (t) => {
  const agentSettings = { ...containerSettings(), EXEC_SLOTS: '8' };
  const cluster = await TestCluster.start({ agentSettings });
  Object.assign(t.context, { cluster });
  Object.assign(t.context, { api: await cluster.newClient() });
});

test.after.always(async (t) => {
  await (t.context as Partial<Context>).cluster?.stop();
});

test('hosts and control nodes are replaced one by one, and callers notice nothing that is not documented', async (t) => {
  const { cluster, api } = t.context;
  const load = new ClusterLoad(api);
  try {
    await load.addAll();
    for (const node of [...cluster.agents, ...cluster.controls]) {
      t.log(new Date().toISOString(), node.machine.name);
      await cluster.restart(node);
    }
    t.log(new Date().toISOString(), 'end');
  } finally {
    await load.end();
  }
  const report = load.report;
  t.log(report);
  t.deepEqual(report.failures, []);
});
