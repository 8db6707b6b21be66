/* All parts of a cluster are replaced one by one, while callers go on. */
import test, { type ExecutionContext } from 'ava';
import { paths } from '../../scripts/local-paths.ts';
import { type ClusterOptions, TestCluster } from '../helpers/cluster.ts';
import { ClusterLoad } from '../helpers/cluster-load.ts';
import { checkOutFormer } from '../helpers/former-version.ts';
import { isFull } from '../helpers/full.ts';
import { containerSettings, sandboxSettings } from '../helpers/sandboxes.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

/** Upgrades agents, then control nodes, to this version. Callers see nothing but what is documented. */
async function upgradeUnderLoad(t: ExecutionContext, options: ClusterOptions): Promise<void> {
  const cluster = await TestCluster.start(options);
  try {
    const load = new ClusterLoad(await cluster.newClient());
    try {
      await load.addAll();
      for (const node of [...cluster.agents, ...cluster.controls]) {
        t.log(new Date().toISOString(), node.machine.name);
        const where = ['--root', node.root, '--address', node.machine.address];
        await node.script(paths.root, 'install', [node.role, ...where]);
        await cluster.restart(node);
      }
    } finally {
      await load.end();
    }
    t.log(load.report);
    t.deepEqual(load.report.failures, []);
  } finally {
    await cluster.stop();
  }
}

test.serial(
  'all nodes restart one by one, and callers notice nothing else than is documented',
  (t) => upgradeUnderLoad(t, { agentSettings: { ...containerSettings(), EXEC_SLOTS: '8' } }),
);

(isFull ? test.serial : test.serial.skip)(
  'all nodes of the version before are upgraded',
  async (t) => {
    t.timeout(600_000);
    await using directory = await temporaryDirectory();
    const checkout = await checkOutFormer(directory.path);
    await upgradeUnderLoad(t, {
      checkout,
      agentSettings: { ...sandboxSettings(), EXEC_SLOTS: '8' },
    });
  },
);
