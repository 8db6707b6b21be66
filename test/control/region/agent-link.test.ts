import { randomUUID } from 'node:crypto';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { once } from 'node:events';
import { connect } from 'node:net';
import { WebSocket } from 'ws';
import { newHostId } from '../../../shared/ids.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { signToken } from '../../../shared/secrets.ts';
import {
  type AgentFrame,
  decodeControlFrame,
  encodeFrame,
  type HostLoad,
  NO_SANDBOXES,
} from '../../../shared/links/stream-protocol.ts';
import { createDisk, exec } from '../../helpers/disks.ts';
import { sendRaw } from '../../helpers/raw-http.ts';
import { Stack } from '../../helpers/stack.ts';

interface Context {
  stack: Stack;
  linkUrl: string;
  nodeId: string;
}

const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const stack = await Stack.start();
  t.context.stack = stack;
  const [node] = await (await stack.openDirectory()).controlNodes.live();
  t.context.linkUrl = node?.linkUrl ?? '';
  t.context.nodeId = node?.nodeId ?? '';
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

interface TokenParts {
  secret: string;
  purpose: string;
  claims: Record<string, string>;
  expiresAt: number;
}

/** A token as a real agent makes it, but for `changes`. */
function tokenOf(
  { stack, nodeId }: Context,
  hostId: string,
  changes: Partial<TokenParts> = {},
): string {
  const clusterId = stack.environment['CLUSTER_ID'] ?? '';
  const { secret, purpose, claims, expiresAt } = {
    secret: stack.environment['CLUSTER_SECRET'] ?? '',
    purpose: 'agent-link',
    expiresAt: Date.now() + LIMITS.partTokenTtlMs,
    ...changes,
    claims: { clusterId, nodeId, hostId, nonce: randomUUID(), ...changes.claims },
  };
  return signToken([secret], purpose, claims, expiresAt);
}

/** The status that an upgrade is refused with, or 101. */
async function upgrade(url: string, token?: string): Promise<number> {
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const socket = new WebSocket(url, { headers });
  return new Promise((resolve) => {
    socket.once('open', () => {
      socket.terminate();
      resolve(101);
    });
    socket.once('unexpected-response', (request, response) => {
      request.destroy();
      resolve(response.statusCode ?? 0);
    });
    socket.on('error', () => undefined);
  });
}

/** Asks for an upgrade without a token, and is gone before the refusal arrives. */
async function resetUpgrade(url: string): Promise<void> {
  const { hostname, port, pathname } = new URL(url);
  const socket = connect(Number(port), hostname);
  socket.on('error', () => undefined);
  await once(socket, 'connect');
  const head = `GET ${pathname} HTTP/1.1\r\nHost: ${hostname}\r\nConnection: Upgrade\r\n`;
  socket.write(`${head}Upgrade: websocket\r\n\r\n`, () => socket.resetAndDestroy());
  await once(socket, 'close');
}

test('a peer that resets its connection while it is refused does no harm', async (t) => {
  const { stack, linkUrl } = t.context;
  for (let count = 0; count < 50; count += 1) await resetUpgrade(linkUrl);
  t.is((await fetch(`${stack.baseUrl}/healthz`)).status, 200);
  t.is(await upgrade(linkUrl), 401);
});

test('an agent with the secret of the cluster is accepted', async (t) => {
  t.is(await upgrade(t.context.linkUrl, tokenOf(t.context, newHostId())), 101);
});

const refused = test.macro({
  async exec(t, changes: Partial<TokenParts>) {
    const token = tokenOf(t.context, newHostId(), changes);
    t.is(await upgrade(t.context.linkUrl, token), 401);
  },
  title: (given) => `a link is refused: ${given}`,
});

test('another secret', refused, { secret: 'another-secret-of-another-cluster' });
test('another purpose', refused, { purpose: 'share' });
test('an expired token', refused, { expiresAt: 0 });
test('a token that lives too long', refused, { expiresAt: Date.now() + 3_600_000 });
test('a token from before the node started', refused, { expiresAt: Date.now() + 1_000 });
test('another cluster', refused, { claims: { clusterId: 'cl-other' } });
test('a token for another node', refused, { claims: { nodeId: 'node-000000000000' } });

test('a link is refused: no token, garbage, another path', async (t) => {
  const { linkUrl } = t.context;
  t.is(await upgrade(linkUrl), 401);
  for (const token of ['', '.', 'a.b', 'key-x', 'e30.', '=='.repeat(1000)]) {
    t.is(await upgrade(linkUrl, token), 401, token);
  }
  const token = tokenOf(t.context, newHostId());
  t.is(await upgrade(`${linkUrl}/x`, token), 401);
  t.is(await upgrade(linkUrl.replace(/\/[^/]*$/u, '/'), token), 401);
});

test('a token opens one link only', async (t) => {
  const token = tokenOf(t.context, newHostId());
  t.is(await upgrade(t.context.linkUrl, token), 101);
  t.is(await upgrade(t.context.linkUrl, token), 401);
});

test('a handshake whose body another parser could see is refused', async (t) => {
  const { linkUrl } = t.context;
  for (const framing of ['Content-Length: 4', 'Transfer-Encoding: chunked', 'Host: other']) {
    const lines = [
      'GET /agent-link HTTP/1.1',
      ...['Host: test', 'Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13'],
      ...['Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==', framing],
      `Authorization: Bearer ${tokenOf(t.context, newHostId())}`,
    ];
    const [reply] = await sendRaw(linkUrl, `${lines.join('\r\n')}\r\n\r\n`);
    t.is(reply?.status, 401, framing);
  }
});

/** A load without capacity, so that no work comes here. */
const load: HostLoad = {
  execSlots: 0,
  execsRunning: 0,
  execsWaiting: 0,
  storageLow: true,
  sandboxes: NO_SANDBOXES,
  draining: true,
};

const registration = ({ stack }: Context, hostId: string): AgentFrame => ({
  type: 'register',
  hostId,
  clusterId: stack.environment['CLUSTER_ID'] ?? '',
  region: 'local-test',
  publicUrl: 'http://127.0.0.1:1',
  internalUrl: 'http://127.0.0.1:2',
  load,
});

async function link(context: Context, hostId: string): Promise<WebSocket> {
  const authorization = `Bearer ${tokenOf(context, hostId)}`;
  const socket = new WebSocket(context.linkUrl, { headers: { authorization } });
  await once(socket, 'open');
  return socket;
}

/** Sends messages and gives the code with which the node ends the link. */
async function closeCode(socket: WebSocket, messages: (Buffer | string)[]): Promise<number> {
  const closed = once(socket, 'close') as Promise<[number]>;
  for (const message of messages) socket.send(message);
  const [code] = await closed;
  return code;
}

test('a registration is answered with the id of the node', async (t) => {
  const hostId = newHostId();
  const socket = await link(t.context, hostId);
  const answered = once(socket, 'message') as Promise<[Buffer]>;
  socket.send(encodeFrame(registration(t.context, hostId)));
  const [answer] = await answered;
  t.like(decodeControlFrame(answer), { type: 'registered', nodeId: t.context.nodeId });
  socket.close();
  await once(socket, 'close');
});

test('a host that is removed loses its link to every node, and gets no other', async (t) => {
  const { stack, linkUrl } = t.context;
  const hostId = newHostId();
  const socket = await link(t.context, hostId);
  const answered = once(socket, 'message');
  socket.send(encodeFrame(registration(t.context, hostId)));
  await answered;
  const { hosts } = await stack.openDirectory();
  const closed = once(socket, 'close');
  await hosts.remove(hostId); // Like another control node.
  await closed;
  t.is(await upgrade(linkUrl, tokenOf(t.context, hostId)), 401);
  t.is(await upgrade(linkUrl, tokenOf(t.context, newHostId())), 101);
});

const badStart = test.macro({
  async exec(t, messages: (frame: AgentFrame) => (Buffer | string)[]) {
    const hostId = newHostId();
    const socket = await link(t.context, hostId);
    const sent = messages(registration(t.context, hostId));
    t.is(await closeCode(socket, sent), 1008);
    await apiStillWorks(t);
  },
  title: (given) => `a link is ended: ${given}`,
});

async function apiStillWorks(t: ExecutionContext<Context>): Promise<void> {
  const api = await t.context.stack.newClient();
  const { id } = await createDisk(api);
  t.is((await exec(api, id, 'echo works')).stdout, 'works\n');
}

const heartbeat = encodeFrame({ type: 'heartbeat', load });

test('garbage instead of a registration', badStart, () => [Buffer.from([1, 2, 3])]);
test('text instead of bytes', badStart, () => ['register']);
test('a heartbeat before the registration', badStart, () => [heartbeat]);
test('the registration of another host', badStart, (frame) => [
  encodeFrame({ ...frame, hostId: newHostId() } as AgentFrame),
]);
test('a host of another cluster', badStart, (frame) => [
  encodeFrame({ ...frame, clusterId: 'cl-other' } as AgentFrame),
]);
test('a host of another region', badStart, (frame) => [
  encodeFrame({ ...frame, region: 'aws-us-east-1' } as AgentFrame),
]);
test('garbage after the registration', badStart, (frame) => [
  encodeFrame(frame),
  Buffer.from('garbage'),
]);
test('a second registration', badStart, (frame) => [encodeFrame(frame), encodeFrame(frame)]);
test('a frame with an undeclared body', badStart, (frame) => [
  encodeFrame(frame),
  Buffer.concat([heartbeat, Buffer.from('more')]),
]);

test('an answer to a job that nobody waits for is ignored', async (t) => {
  const hostId = newHostId();
  const socket = await link(t.context, hostId);
  socket.send(encodeFrame(registration(t.context, hostId)));
  await once(socket, 'message');
  socket.send(encodeFrame({ type: 'accepted', jobId: 'unknown' }));
  socket.send(encodeFrame({ type: 'result', jobId: 'unknown', result: {}, body: [] }));
  await apiStillWorks(t);
  t.is(socket.readyState, WebSocket.OPEN);
  socket.close();
  await once(socket, 'close');
});

test('a new link of a host replaces its former one', async (t) => {
  const hostId = newHostId();
  const former = await link(t.context, hostId);
  former.send(encodeFrame(registration(t.context, hostId)));
  await once(former, 'message');
  const ended = once(former, 'close');
  const present = await link(t.context, hostId);
  present.send(encodeFrame(registration(t.context, hostId)));
  await ended;
  await apiStillWorks(t);
  t.is(present.readyState, WebSocket.OPEN);
  present.close();
  await once(present, 'close');
});
