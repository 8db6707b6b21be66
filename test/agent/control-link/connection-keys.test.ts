import test, { type ExecutionContext } from 'ava';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { pino } from 'pino';
import { WebSocketServer } from 'ws';
import { ConnectionKeys } from '../../../agent/control-link/connection-keys.ts';
import { ControlLinks } from '../../../agent/control-link/control-link.ts';
import { newAccountId, newHostId, newNodeId, newSandboxId } from '../../../shared/ids.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { LINK_LIMITS } from '../../../agent/control-link/limits.ts';
import { signConnectionKeys } from '../../../shared/links/connection-keys.ts';
import { ConnectionSigner } from '../../../shared/links/connection-token.ts';
import { encodeFrame, NO_SANDBOXES } from '../../../shared/links/stream-protocol.ts';
import { HOUR_MS } from '../../../shared/units.ts';
import { waitFor } from '../../helpers/wait.ts';

const region = 'local-test';
const hostId = newHostId();
const now = Date.parse('2026-01-01T00:00:00.000Z');
const retainedMs = LIMITS.connectionTokenTtlMs + LINK_LIMITS.connectionKeySlackMs;
const [signer, former] = ['new', 'old'].map(
  (name) => new ConnectionSigner([`${name}-${'x'.repeat(32)}`], region),
) as [ConnectionSigner, ConnectionSigner];

const claimsAt = (time: number) => ({
  sandboxId: newSandboxId(),
  accountId: newAccountId(),
  hostId,
  expiresAt: time + LIMITS.connectionTokenTtlMs,
});

test('a host accepts tokens for itself and its region only', (t) => {
  const keys = new ConnectionKeys({ hostId, region });
  t.false(keys.isReady);
  const claims = claimsAt(now);
  t.is(keys.verify(signer.sign(claims), now), undefined, 'no node has told its keys');
  keys.hold('node-a', signer.publicKeys, now);
  t.true(keys.isReady);
  t.deepEqual(keys.verify(signer.sign(claims), now), { ...claims, region });
  t.is(keys.verify(signer.sign({ ...claims, hostId: newHostId() }), now), undefined);
  const elsewhere = new ConnectionKeys({ hostId, region: 'local-other' });
  elsewhere.hold('node-a', signer.publicKeys, now);
  t.is(elsewhere.verify(signer.sign(claims), now), undefined);
});

test('a token may be used again until it expires', (t) => {
  const keys = new ConnectionKeys({ hostId, region });
  keys.hold('node-a', signer.publicKeys, now);
  const token = signer.sign(claimsAt(now));
  t.truthy(keys.verify(token, now));
  t.truthy(keys.verify(token, now + LIMITS.connectionTokenTtlMs - 1));
  t.is(keys.verify(token, now + LIMITS.connectionTokenTtlMs), undefined);
});

test('tokens outlive the control nodes that signed them', (t) => {
  const keys = new ConnectionKeys({ hostId, region });
  keys.hold('node-a', signer.publicKeys, now);
  keys.hold('node-b', signer.publicKeys, now);
  keys.release('node-a', now);
  keys.release('node-b', now + 1_000_000);
  const lostAt = now + 1_000_000;
  const accepts = (at: number): boolean => keys.verify(signer.sign(claimsAt(at)), at) !== undefined;
  t.true(accepts(lostAt + retainedMs - 1));
  t.false(accepts(lostAt + retainedMs));
  keys.hold('node-b', signer.publicKeys, lostAt + retainedMs);
  t.true(accepts(lostAt + 10 * retainedMs));
});

test('a key that the nodes gave up is forgotten, and the present ones are kept', (t) => {
  const keys = new ConnectionKeys({ hostId, region });
  keys.hold('node-a', [...signer.publicKeys, ...former.publicKeys], now);
  keys.hold('node-a', signer.publicKeys, now);
  const later = now + retainedMs;
  t.truthy(keys.verify(former.sign(claimsAt(now)), later - LINK_LIMITS.connectionKeySlackMs - 1));
  t.is(keys.verify(former.sign(claimsAt(later)), later), undefined);
  t.truthy(keys.verify(signer.sign(claimsAt(later)), later));
  keys.release('node-unknown', later);
  t.truthy(keys.verify(signer.sign(claimsAt(later)), later));
});

const clusterSecrets = ['the-secret-of-the-cluster-of-38-chars-'] as const;
const load = {
  ...{ execSlots: 0, execsRunning: 0, execsWaiting: 0, storageLow: true },
  ...{ sandboxes: NO_SANDBOXES, draining: true },
};

/** Links an agent to a control node that tells these keys. */
async function linkTo(t: ExecutionContext, connectionKeys: (nodeId: string) => string) {
  const nodeId = newNodeId();
  const server = new WebSocketServer({ port: 0, host: '127.0.0.1' });
  t.teardown(() => server.close());
  await once(server, 'listening');
  const closes: number[] = [];
  const received: Buffer[] = [];
  server.on('connection', (socket) => {
    socket.on('message', (data: Buffer) => received.push(data));
    socket.once('message', () => {
      const answer = {
        type: 'registered',
        nodeId,
        connectionKeys: connectionKeys(nodeId),
      } as const;
      socket.send(encodeFrame(answer));
    });
    socket.once('close', (code) => closes.push(code));
  });
  const { port } = server.address() as AddressInfo;
  const keys = new ConnectionKeys({ hostId, region });
  const links = new ControlLinks({
    ...{ hostId, clusterId: 'cluster', clusterSecrets, region, connectionKeys: keys },
    ...{ publicUrl: 'http://127.0.0.1:1', internalUrl: 'http://127.0.0.1:2' },
    log: pino({ level: 'silent' }),
    load: () => load,
    onCancel: () => undefined,
    onCutOff: () => t.fail('the links were cut off'),
  });
  t.teardown(() => links.close());
  links.start();
  links.linkTo([{ nodeId, linkUrl: `ws://127.0.0.1:${port}`, linkShare: 1 }]);
  return { keys, links, closes, received, server };
}

test('an agent keeps the keys of a control node over the loss of the link', async (t) => {
  const { keys, links, server } = await linkTo(t, (nodeId) =>
    signConnectionKeys(clusterSecrets, { nodeId, hostId, region }, signer.publicKeys),
  );
  await waitFor('the link', async () => links.isConnected);
  const claims = claimsAt(Date.now());
  const token = signer.sign(claims);
  t.deepEqual(keys.verify(token), { ...claims, region });
  server.close();
  for (const socket of server.clients) socket.terminate();
  await waitFor('the loss of the link', async () => !links.isConnected);
  t.deepEqual(keys.verify(token), { ...claims, region });
});

test('an agent closes the link to a node that does not have the secret of the cluster', async (t) => {
  const { keys, links, closes } = await linkTo(t, (nodeId) =>
    signConnectionKeys([`${clusterSecrets[0]}x`], { nodeId, hostId, region }, signer.publicKeys),
  );
  await waitFor('the link to be closed', async () => closes.length > 0);
  t.is(closes[0], 1008);
  t.false(links.isConnected);
  t.false(keys.isReady);
});

test.serial('a step of the wall clock does not close the link to a node', async (t) => {
  const { links, closes, received } = await linkTo(t, (nodeId) =>
    signConnectionKeys(clusterSecrets, { nodeId, hostId, region }, signer.publicKeys),
  );
  await waitFor('the link', async () => links.isConnected);
  const wallClock = Date.now;
  t.teardown(() => {
    Date.now = wallClock;
  });
  Date.now = () => wallClock() + HOUR_MS;
  const before = received.length;
  await waitFor('two heartbeats', async () => received.length >= before + 2);
  t.true(links.isConnected);
  t.deepEqual(closes, []);
});
