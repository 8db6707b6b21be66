/* Records that go with a host that is removed, and those that stay. */
import test from 'ava';
import { pino } from 'pino';
import { AgentHub } from '../../../../control/region/agent-hub.ts';
import { removeHost } from '../../../../control/api/hosts/hosts.ts';
import { openDirectory } from '../../../../shared/directory/directory.ts';
import { newHostId, newNodeId } from '../../../../shared/ids.ts';
import type { HostReport } from '../../../../shared/schemas/host.ts';
import { startRedis } from '../../../helpers/redis.ts';
import { sandboxRecord } from '../../../helpers/sandbox-records.ts';

const LONG_AGO: HostReport = {
  ...{ version: '1.0.0', order: 'up', vcpus: 8, vcpusFree: 8, memoryMib: 1, memoryMibFree: 1 },
  ...{ storageFreeBytes: 1, execSlots: 8, execsRunning: 0, execsWaiting: 0 },
  ...{ sandboxes: 2, sandboxesActive: 0, disks: 0, disksHeld: 0, seenAt: 1 },
};

test('a sandbox that another host takes while its former one is removed stays', async (t) => {
  await using server = await startRedis();
  const region = 'local-test';
  const directory = openDirectory(server.redis, region);
  const { sandboxes, hosts } = directory;
  const hub = new AgentHub({
    ...{ nodeId: newNodeId(), clusterId: 'cluster', region, isEncrypted: false },
    ...{ clusterSecrets: ['a-secret'], connectionKeys: [], hosts },
    log: pino({ level: 'silent' }),
  });
  try {
    const hostId = newHostId();
    await hosts.exchange(hostId, { report: LONG_AGO, internalUrl: undefined });
    const { id: accountId } = await directory.accounts.create('account');
    const [gone, taken] = [
      sandboxRecord({ accountId, hostId }),
      sandboxRecord({ accountId, hostId }),
    ];
    for (const record of [gone, taken]) await sandboxes.publish(record);
    const list = sandboxes.list.bind(sandboxes);
    sandboxes.list = async (id) => {
      const found = await list(id);
      await sandboxes.publish({ ...taken, hostId: newHostId(), revision: 2 });
      return found;
    };
    await removeHost({ directory, hub }, hostId);
    t.deepEqual(
      (await list(accountId)).map(({ id }) => id),
      [taken.id],
    );
    t.is((await sandboxes.find(accountId, taken.config.name))?.id, taken.id);
  } finally {
    hub.close();
  }
});
