import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'ava';
import { pino } from 'pino';
import { WebSocket } from 'ws';
import { AgentHub, LINK_PATH } from '../../../control/region/agent-hub.ts';
import { Hosts } from '../../../shared/directory/hosts.ts';
import { newHostId, newNodeId } from '../../../shared/ids.ts';
import { signOnce } from '../../../shared/links/single-use-token.ts';
import { ConnectionSigner } from '../../../shared/links/connection-token.ts';
import {
  decodeControlFrame,
  encodeFrame,
  NO_SANDBOXES,
} from '../../../shared/links/stream-protocol.ts';
import { startRedis } from '../../helpers/redis.ts';
import { waitFor } from '../../helpers/wait.ts';
import { REGION_LIMITS } from '../../../control/region/limits.ts';
import { LIMITS } from '../../../shared/limits.ts';

Object.assign(LIMITS, { linkHeartbeatMs: 100, linkSilenceMsMax: 1_500 });
Object.assign(REGION_LIMITS, { spareLinkMs: 700 });

const [clusterId, region] = ['cluster', 'local-test'];
const clusterSecrets = ['the-secret-of-the-cluster-of-38-chars-'] as const;
const load = {
  ...{ execSlots: 0, execsRunning: 0, execsWaiting: 0, storageLow: true },
  ...{ sandboxes: NO_SANDBOXES, draining: true },
};

/** A node's end of the links, on a port of its own. */
async function openHub() {
  const stack = new AsyncDisposableStack();
  const { redis } = stack.use(await startRedis());
  const nodeId = newNodeId();
  const { publicKeys: connectionKeys } = new ConnectionSigner(['a signing key'], region);
  const hub = new AgentHub({
    ...{ nodeId, clusterId, clusterSecrets, region, isEncrypted: false, connectionKeys },
    ...{ hosts: new Hosts(redis, region), log: pino({ level: 'silent' }) },
  });
  stack.defer(() => hub.close());
  const server = createServer();
  stack.defer(() => void server.close());
  hub.serve(server);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const url = `ws://127.0.0.1:${port}${LINK_PATH}`;
  return { hub, nodeId, url, [Symbol.asyncDispose]: () => stack.disposeAsync() };
}

/** A host that says nothing after its registration. @param autoPong whether it answers pings */
async function linkHost(
  { nodeId, url }: { nodeId: string; url: string },
  { autoPong = true, isSpare = false },
) {
  const hostId = newHostId();
  const token = signOnce(clusterSecrets, 'agent-link', { hostId, clusterId, nodeId });
  const headers = { authorization: `Bearer ${token}` };
  const socket = new WebSocket(url, { headers, autoPong });
  await once(socket, 'open');
  const answered = once(socket, 'message') as Promise<[Buffer]>;
  const urls = { publicUrl: 'http://127.0.0.1:1', internalUrl: 'http://127.0.0.1:2' };
  const frame = { type: 'register', hostId, clusterId, region, ...urls, load, isSpare } as const;
  socket.send(encodeFrame(frame));
  const [answer] = await answered;
  return { hostId, socket, registered: decodeControlFrame(answer) };
}

test('a host that answers pings is there without heartbeats, and one that does not is dropped', async (t) => {
  await using node = await openHub();
  const { hub } = node;
  const answering = await linkHost(node, {});
  t.like(answering.registered, { type: 'registered', onlyChangedLoads: true });
  // Linked later: were answers nothing, the other one would be dropped no later than this one.
  const silent = await linkHost(node, { autoPong: false });
  await waitFor('the loss of the silent host', async () => hub.find(silent.hostId) === undefined);
  t.truthy(hub.find(answering.hostId));
  t.is(answering.socket.readyState, WebSocket.OPEN);
  answering.socket.terminate();
});

test('a link that the node has asked for ends when it is not used, and no other one', async (t) => {
  await using node = await openHub();
  const { hub } = node;
  const chosen = await linkHost(node, {});
  const spare = await linkHost(node, { isSpare: true });
  const busy = await linkHost(node, { isSpare: true });
  t.is(hub.linkedCount, 3);
  // Work for no host in particular goes to those alone whose links last.
  t.deepEqual(
    [...hub.inRandomOrder()].map(({ hostId }) => hostId),
    [chosen.hostId],
  );
  const settlement = hub.waiters.waitFor('a job', busy.hostId);
  const [code] = (await once(spare.socket, 'close')) as [number];
  t.is(code, 1000);
  t.is(hub.find(spare.hostId), undefined);
  t.is(busy.socket.readyState, WebSocket.OPEN);
  busy.socket.send(encodeFrame({ type: 'result', jobId: 'a job', result: {}, body: [] }));
  t.is((await settlement).kind, 'answer');
  await once(busy.socket, 'close');
  t.truthy(hub.find(chosen.hostId));
  // A chosen link that becomes spare is treated alike.
  chosen.socket.send(encodeFrame({ type: 'heartbeat', load, isSpare: true }));
  await once(chosen.socket, 'close');
  t.is(hub.linkedCount, 0);
});
