import assert from 'node:assert';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { pino } from 'pino';
import { WebSocketServer } from 'ws';
import { ConnectionKeys } from '../../../agent/control-link/connection-keys.ts';
import { ControlLinks } from '../../../agent/control-link/control-link.ts';
import { newHostId, newNodeId } from '../../../shared/ids.ts';
import { LINK_LIMITS } from '../../../agent/control-link/limits.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { signConnectionKeys } from '../../../shared/links/connection-keys.ts';
import { ConnectionSigner } from '../../../shared/links/connection-token.ts';
import {
  decodeAgentFrame,
  encodeFrame,
  type HostLoad,
  NO_SANDBOXES,
} from '../../../shared/links/stream-protocol.ts';
import { waitFor } from '../../helpers/wait.ts';

// Short beats. The nodes of these tests send no pings.
Object.assign(LIMITS, { linkHeartbeatMs: 20, linkSilenceMsMax: 600_000 });

const [hostId, region] = [newHostId(), 'local-test'];
const clusterSecrets = ['the-secret-of-the-cluster-of-38-chars-'] as const;
const { publicKeys } = new ConnectionSigner(['a signing key of the tests'], region);

/** A control node, and what it is told: loads, and whether its link is a spare one. */
async function playNode(t: ExecutionContext, said: { readonly onlyChangedLoads?: boolean }) {
  const nodeId = newNodeId();
  const server = new WebSocketServer({ port: 0, host: '127.0.0.1' });
  t.teardown(() => server.close());
  await once(server, 'listening');
  const loads: HostLoad[] = [];
  const registrations: boolean[] = [];
  const heartbeats: boolean[] = [];
  const connectionKeys = signConnectionKeys(clusterSecrets, { nodeId, hostId, region }, publicKeys);
  server.on('connection', (socket) => {
    socket.on('message', (data: Buffer) => {
      const { frame } = decodeAgentFrame(data);
      if (frame.type === 'heartbeat') {
        loads.push(frame.load);
        heartbeats.push(frame.isSpare === true);
      } else if (frame.type === 'register') {
        registrations.push(frame.isSpare === true);
        socket.send(encodeFrame({ type: 'registered', nodeId, connectionKeys, ...said }));
      }
    });
  });
  const { port } = server.address() as AddressInfo;
  return {
    nodeId,
    linkUrl: `ws://127.0.0.1:${port}`,
    linkShare: 1,
    loads,
    registrations,
    heartbeats,
  };
}

/** The links of a host that can reach the directory. */
function newLinks(t: ExecutionContext, execsRunning = () => 0): ControlLinks {
  const links = new ControlLinks({
    ...{ hostId, clusterId: 'cluster', clusterSecrets, region },
    connectionKeys: new ConnectionKeys({ hostId, region }),
    ...{ publicUrl: 'http://127.0.0.1:1', internalUrl: 'http://127.0.0.1:2' },
    log: pino({ level: 'silent' }),
    load: () => ({
      ...{ execSlots: 8, execsRunning: execsRunning(), execsWaiting: 0, storageLow: false },
      ...{ sandboxes: NO_SANDBOXES, draining: false },
    }),
    onCancel: () => undefined,
    onCutOff: () => t.fail('the links were cut off'),
  });
  t.teardown(() => links.close());
  links.start();
  return links;
}

test('only a node that knows heartbeats alone is told a load that has not changed', async (t) => {
  const former = await playNode(t, {});
  const present = await playNode(t, { onlyChangedLoads: true });
  let execsRunning = 0;
  const links = newLinks(t, () => execsRunning);
  links.linkTo([former, present]);
  await waitFor('both links', async () => links.registeredCount === 2);
  const threeBeats = async (): Promise<void> => {
    const before = former.loads.length;
    await waitFor('heartbeats', async () => former.loads.length >= before + 3);
  };
  await threeBeats();
  t.deepEqual(present.loads, []);
  execsRunning = 1;
  await waitFor('the new load', async () => present.loads.length > 0);
  await threeBeats();
  links.sendLoad();
  await threeBeats();
  t.deepEqual(
    present.loads.map((load) => load.execsRunning),
    [1],
  );
});

test('a node that asks for a link has it as a spare one, until the host chooses the node', async (t) => {
  const nodes = await Promise.all(
    Array.from({ length: 4 }, () => playNode(t, { onlyChangedLoads: true })),
  );
  // None wants hosts, so the host chooses as many as it must have.
  const unwanting = nodes.map((node) => ({ ...node, linkShare: 0 }));
  const links = newLinks(t);
  links.linkTo(unwanting);
  await waitFor('the links', async () => links.registeredCount === LINK_LIMITS.linksPerHostMin);
  const asking = unwanting.find(({ registrations }) => registrations.length === 0);
  assert(asking !== undefined);
  await Promise.all([links.open(asking), links.open(asking)]);
  t.deepEqual(asking.registrations, [true]);
  t.is(links.registeredCount, LINK_LIMITS.linksPerHostMin + 1);
  links.linkTo(unwanting.map((node) => (node === asking ? { ...node, linkShare: 1 } : node)));
  await waitFor('the choice to be told', async () => asking.heartbeats.at(-1) === false);
  links.linkTo(unwanting);
  await waitFor('that it is spare again', async () => asking.heartbeats.at(-1) === true);
  t.is(asking.registrations.length, 1);
  t.true(unwanting.every((node) => node === asking || !node.registrations.includes(true)));
});

test('a link that was asked for and fails is told', async (t) => {
  const links = newLinks(t);
  const gone = { nodeId: newNodeId(), linkUrl: 'ws://127.0.0.1:1' };
  await t.throwsAsync(links.open(gone), { message: /has failed/u });
  links.close();
  await t.throwsAsync(links.open(gone), { message: /shutting down/u });
});
