import test, { type ExecutionContext } from 'ava';
import { pino } from 'pino';
import { HostBeat } from '../../../agent/control-link/host-beat.ts';
import { HostOrders } from '../../../agent/control-link/host-orders.ts';
import { Beat } from '../../../agent/system/beat.ts';
import type { ControlNode } from '../../../shared/directory/control-nodes.ts';
import { openDirectory } from '../../../shared/directory/directory.ts';
import type { HostEntry } from '../../../shared/directory/hosts.ts';
import { newHostId, newNodeId } from '../../../shared/ids.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';
import { SYSTEM_LIMITS } from '../../../agent/system/limits.ts';

const log = pino({ level: 'silent' });

/** A host that beats fast, and writes nothing for its age alone unless a test says so. */
async function openHost(t: ExecutionContext) {
  Object.assign(SYSTEM_LIMITS, { hostReportMs: 10, hostAnnounceMs: 600_000 });
  const server = await startRedis();
  t.teardown(() => server[Symbol.asyncDispose]());
  const { redis } = server;
  const directory = openDirectory(redis, 'local-test');
  const hostId = newHostId();
  const figures = { execs: { running: 0, waiting: 0 }, storage: { freeBytes: 1 } };
  const orders = await HostOrders.open({
    ...{ hostId, directory, config: { execSlots: 8 }, log },
    host: {
      ...{ ...figures, sandboxes: undefined },
      disks: { attached: 0, held: [], releaseUnused: async () => undefined },
    },
  });
  const seen = { beats: 0, nodes: [] as readonly ControlNode[] };
  const hooks = { onOrder: (): void => undefined };
  const hostBeat = new HostBeat({
    ...{ hostId, directory, orders, beat: new Beat(), log },
    onOrder: () => hooks.onOrder(),
    onNodes: (nodes) => {
      seen.nodes = nodes;
      seen.beats += 1;
    },
  });
  t.teardown(() => hostBeat.close());
  hostBeat.start();
  await waitFor('the first beat', async () => seen.beats > 0);
  return {
    ...{ hostId, directory, figures, orders, hostBeat, seen, hooks },
    entry: (): Promise<HostEntry | undefined> => directory.hosts.get(hostId),
    /** How often anything was written to this Redis. */
    writes: async (): Promise<string | undefined> =>
      /rdb_changes_since_last_save:(\d+)/u.exec(await redis.info('persistence'))?.[1],
    moreBeats: async (count: number): Promise<void> => {
      const wanted = seen.beats + count;
      await waitFor('beats', async () => seen.beats >= wanted);
    },
  };
}

test.serial(
  'a host writes its figures when they change, and else only lest they age',
  async (t) => {
    const { figures, entry, writes, moreBeats } = await openHost(t);
    const before = await writes();
    figures.storage.freeBytes = 2; // Free space always moves a little.
    await moreBeats(10);
    t.is(await writes(), before);
    figures.execs.running = 1;
    await waitFor('the change', async () => (await entry())?.report.execsRunning === 1);
    const { report } = (await entry()) ?? {};
    t.is(report?.storageFreeBytes, 2);
    Object.assign(SYSTEM_LIMITS, { hostAnnounceMs: 20 });
    await waitFor('a younger report', async () => {
      const seenAt = (await entry())?.report.seenAt;
      return seenAt !== undefined && report !== undefined && seenAt > report.seenAt;
    });
  },
);

test.serial('control hears of a followed order before the directory shows it', async (t) => {
  const { hostId, directory, orders, hooks, entry } = await openHost(t);
  const shown: Promise<HostEntry | undefined>[] = [];
  hooks.onOrder = () => {
    t.true(orders.isCordoned);
    shown.push(entry());
  };
  await directory.hosts.give(hostId, 'cordoned');
  await waitFor('the order', async () => (await entry())?.report.order === 'cordoned');
  const [then, ...others] = await Promise.all(shown);
  t.is(then?.report.order, 'up');
  t.deepEqual(others, []);
});

test.serial('a host is found at its address until its beat ends', async (t) => {
  const { hostId, directory, hostBeat } = await openHost(t);
  const { hosts } = directory;
  t.is(await hosts.find(hostId), undefined);
  hostBeat.announce('https://10.0.0.1:8710');
  await waitFor('the address', async () => (await hosts.find(hostId)) === 'https://10.0.0.1:8710');
  await hostBeat.close();
  t.is(await hosts.find(hostId), undefined);
});

test.serial('a host hears of the live control nodes', async (t) => {
  const { directory, seen } = await openHost(t);
  const node = { nodeId: newNodeId(), linkUrl: 'ws://127.0.0.1:1/agent-link', linkShare: 0.5 };
  await directory.controlNodes.announce(node, false);
  await waitFor('the node', async () => seen.nodes.length > 0);
  t.deepEqual(seen.nodes, [node]);
  await directory.controlNodes.announce(node, true);
  await waitFor('its leave', async () => seen.nodes.length === 0);
});
