/* The ingress over real sockets, with sandboxes that are containers. */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { Agent, request as httpRequest } from 'node:http';
import { readFile, writeFile } from 'node:fs/promises';
import { request as httpsRequest } from 'node:https';
import { connect } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import { WebSocket } from 'ws';
import { newSandboxId } from '../../shared/ids.ts';
import { MiB } from '../../shared/units.ts';
import type { ApiClient } from '../helpers/api.ts';
import type { Daemon } from '../helpers/daemon.ts';
import {
  ask,
  expose,
  hostOf,
  newPortToken,
  serveOneAtATime,
  startBackend,
  writeCertificate,
} from '../helpers/ingress.ts';
import { freePorts } from '../helpers/ports.ts';
import { sendRaw } from '../helpers/raw-http.ts';
import { containerSettings, createSandbox, sandboxPath } from '../helpers/sandboxes.ts';
import { smugglingCorpus } from '../helpers/smuggling.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

const PUBLIC = 8080;
const PRIVATE = 8081;
/** Longer transfers are behind BERTH_TEST_FULL. */
const LONG_MIB = isFull ? 1024 : 50;
const ANSWER_MS = 1_500;

interface Seen {
  readonly method: string;
  readonly url: string;
  readonly headers: Record<string, string>;
  /** How many requests for what a smuggled head asks for have arrived. */
  readonly victims: number;
}

interface Context {
  stack: Stack;
  api: ApiClient;
  /** Port of the agent that has the sandbox, and of one that has none. */
  own: number;
  other: number;
  id: string;
  host: string;
  privateHost: string;
  backends: Daemon[];
}

const test = anyTest as TestFn<Context>;
type Test = ExecutionContext<Context>;

test.before(async (t) => {
  const [own = 0, other = 0] = await freePorts(2);
  const settings = { INGRESS_ANSWER_MS: String(ANSWER_MS), INGRESS_THREADS: '2' };
  const stack = await Stack.start({ ...containerSettings(), ...settings, INGRESS_PORT: `${own}` });
  t.context.stack = stack;
  const second = await stack.addAgent({ INGRESS_PORT: `${other}`, SANDBOX_RUNTIME: 'microvm' });
  await second.start();
  const api = await stack.newClient();
  const { sandbox_id: id } = await createSandbox(api);
  const backends = [
    await startBackend(id, PUBLIC, stack.directory),
    await startBackend(id, PRIVATE, stack.directory),
  ];
  await expose(api, id, PUBLIC);
  const hosts = { host: hostOf(PUBLIC, id), privateHost: hostOf(PRIVATE, id) };
  Object.assign(t.context, { api, own, other, id, backends, ...hosts });
});

test.after.always(async (t) => {
  await Promise.all((t.context.backends ?? []).map((backend) => backend.stop('SIGKILL')));
  await t.context.stack.stop();
});

const seenAt = async (t: Test, options: Parameters<typeof ask>[3] = {}): Promise<Seen> => {
  const { own, host } = t.context;
  const reply = await ask(own, host, '/request?a=b', options);
  t.is(reply.status, 200);
  return reply.json<Seen>();
};

/** The status of the first answer to bytes after which we send nothing more; 0: none. */
async function firstStatus(port: number, bytes: Buffer): Promise<number> {
  const socket = connect(port, '127.0.0.1');
  let text = '';
  socket.on('data', (chunk: Buffer) => {
    text += chunk.toString('latin1');
  });
  socket.on('error', () => undefined);
  socket.end(bytes);
  await once(socket, 'close');
  return Number(/^HTTP\/1\.1 (\d{3})/u.exec(text)?.[1] ?? 0);
}

const tokenHeader = (token: string): { headers: Record<string, string> } => ({
  headers: { 'x-service-token': token },
});

test('a public port is reached without a token, by its hostname in any spelling', async (t) => {
  const { own, host } = t.context;
  for (const spelt of [host, host.toUpperCase(), `${host}:${own}`, `${host}.`]) {
    t.is((await ask(own, spelt)).status, 200, spelt);
  }
});

test('the guest sees the request as it was sent, with where it came from', async (t) => {
  const { host } = t.context;
  const seen = await seenAt(t, { headers: { 'x-own': 'kept', 'x-forwarded-for': '203.0.113.9' } });
  t.is(seen.url, '/request?a=b');
  t.like(seen.headers, { host, 'x-own': 'kept', 'x-forwarded-proto': 'http' });
  t.is(seen.headers['x-forwarded-host'], host);
  // The loopback address is one of PROXY_ADDRESSES, but only TRUSTED_PROXIES are believed.
  t.is(seen.headers['x-forwarded-for'], '127.0.0.1');
});

test('hostnames of no sandbox are not found, whatever else they are', async (t) => {
  const { own, id, host } = t.context;
  const short = host.split('.')[0] ?? '';
  for (const wrong of [
    ...['localhost', 'sbx.localhost', `${short}.other.localhost`, `x.${host}`, '127.0.0.1'],
    ...[hostOf(0, id), hostOf(65_536, id), `8080-${id}.sbx.localhost`, `${short}sbx.localhost`],
  ]) {
    t.is((await ask(own, wrong)).status, 404, wrong);
  }
});

test('a private port and a sandbox that is not there answer alike', async (t) => {
  const { own, privateHost } = t.context;
  const present = await ask(own, privateHost);
  const absent = await ask(own, hostOf(PRIVATE, newSandboxId()));
  t.is(present.status, 401);
  t.is(absent.status, 401);
  t.deepEqual(present.body, absent.body);
  const named = ({ answer: { rawHeaders } }: typeof present): string[] =>
    rawHeaders.filter((_, index) => index % 2 === 0);
  t.deepEqual(named(present), named(absent));
});

test('a token opens its port, and the guest never sees it', async (t) => {
  const { own, api, id, privateHost } = t.context;
  const { token } = await newPortToken(api, id, PRIVATE);
  for (const name of ['x-service-token', 'X-Archil-Token']) {
    const reply = await ask(own, privateHost, '/request', { headers: { [name]: token } });
    t.is(reply.status, 200);
    t.false(reply.body.includes(token));
  }
  // Nor where the port is public anyway.
  t.false(JSON.stringify(await seenAt(t, tokenHeader(token))).includes(token));
});

test('no other token opens a port: of another port, another sandbox, or none', async (t) => {
  const { own, api, id, privateHost } = t.context;
  const otherPort = await newPortToken(api, id, 9);
  const record = await createSandbox(api);
  const neighbour = await newPortToken(api, record.sandbox_id, PRIVATE);
  for (const token of [otherPort.token, neighbour.token, 'pt-x', '', 'x'.repeat(4000)]) {
    t.is((await ask(own, privateHost, '/request', tokenHeader(token))).status, 401, token);
  }
});

test('a revoked token, and one that has expired, is refused at the next request', async (t) => {
  const { own, api, id, privateHost } = t.context;
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  for (let round = 0; round < 20; round += 1) {
    const { id: tokenId, token } = await newPortToken(api, id, PRIVATE);
    const options = { ...tokenHeader(token), agent };
    t.is((await ask(own, privateHost, '/request', options)).status, 200);
    await api.call('DELETE', `${sandboxPath(id)}/port-tokens/${tokenId}`);
    t.is((await ask(own, privateHost, '/request', options)).status, 401);
  }
  agent.destroy();
  const path = `${sandboxPath(id)}/port-tokens`;
  const brief = await api.data<{ token: string }>('POST', path, { port: PRIVATE, ttl: '300ms' });
  await sleep(350);
  t.is((await ask(own, privateHost, '/request', tokenHeader(brief.token))).status, 401);
});

test('a port that is closed again is private at the next request', async (t) => {
  const { own, api, id } = t.context;
  const port = 8099;
  await expose(api, id, port);
  t.is((await ask(own, hostOf(port, id))).status, 502);
  await api.call('DELETE', `${sandboxPath(id)}/ports/${port}`);
  t.is((await ask(own, hostOf(port, id))).status, 401);
});

test('nothing listens: 502; no answer in time: 504; a broken connection: 502', async (t) => {
  const { own, api, id, host } = t.context;
  await expose(api, id, 7);
  t.is((await ask(own, hostOf(7, id))).status, 502);
  t.is((await ask(own, host, '/silent')).status, 504);
  t.is((await ask(own, host, '/silent', { method: 'POST', body: 'x' })).status, 504);
  t.is((await ask(own, host, '/break', { method: 'POST', body: 'x' })).status, 502);
  t.is((await ask(own, host, '/break')).status, 502);
});

test('headers of one connection go no further, in either direction', async (t) => {
  const { own, host } = t.context;
  const seen = await seenAt(t, {
    headers: {
      ...{ connection: 'close, x-hop', 'x-hop': '1', te: 'trailers', 'keep-alive': 'timeout=1' },
      ...{ 'proxy-authorization': 'Basic eA==', 'x-kept': '1' },
    },
  });
  for (const name of ['x-hop', 'te', 'keep-alive', 'proxy-authorization', 'x-service-token']) {
    t.false(name in seen.headers, name);
  }
  t.is(seen.headers['x-kept'], '1');
  const { answer } = await ask(own, host, '/hops');
  t.is(answer.headers['x-kept'], 'yes');
  for (const name of ['x-hop', 'proxy-authenticate']) t.false(name in answer.headers, name);
});

test('methods, statuses and bodies pass', async (t) => {
  const { own, host } = t.context;
  for (const method of ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']) {
    const body = method === 'GET' ? '' : '{}';
    const headers = { 'content-length': String(body.length) };
    t.is((await seenAt(t, { method, body, headers })).method, method);
  }
  const digest = await ask(own, host, '/digest', {
    ...{ method: 'DELETE', body: 'gone', headers: { 'content-length': '4' } },
  });
  t.is(digest.json<{ bytes: number }>().bytes, 4);
  const head = await ask(own, host, '/bytes?mib=1', { method: 'HEAD' });
  t.is(head.answer.headers['content-length'], String(MiB));
  t.is(head.body.length, 0);
  for (const code of [204, 304, 418, 503]) {
    t.is((await ask(own, host, `/status?code=${code}`)).status, code);
  }
});

test('connections are kept alive on both sides', async (t) => {
  const { own, host } = t.context;
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const ports = new Set<number | undefined>();
  for (let round = 0; round < 20; round += 1) {
    ports.add((await ask(own, host, '/request', { agent })).localPort);
  }
  t.is(ports.size, 1);
  agent.destroy();
});

test('a server that serves one connection at a time serves callers of all threads', async (t) => {
  const { api, own, other } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { ports: [8000] });
  await serveOneAtATime(api, id, 8000);
  const host = hostOf(8000, id);
  await waitFor('the server', async () => (await ask(own, host)).status === 200);
  // Each of these is of one thread, which keeps its connection to the server.
  const agents = Array.from({ length: 6 }, () => new Agent({ keepAlive: true, maxSockets: 1 }));
  t.teardown(() => agents.forEach((agent) => agent.destroy()));
  const statuses: number[] = [];
  for (let round = 0; round < 3; round += 1) {
    for (const agent of agents) statuses.push((await ask(own, host, '/', { agent })).status);
    const together = agents.slice(0, 3).map((agent) => ask(own, host, '/', { agent }));
    for (const { status } of await Promise.all(together)) statuses.push(status);
    statuses.push((await ask(other, host)).status, (await ask(own, host)).status);
  }
  t.deepEqual([...new Set(statuses)], [200], statuses.join(' '));
});

test('trailers of an answer pass', async (t) => {
  const { own, host } = t.context;
  const { answer, body } = await ask(own, host, '/trailers');
  t.is(body.toString('utf8'), 'body');
  t.deepEqual(answer.trailers, { 'x-sum': '42' });
});

test('a client that expects 100-continue is told to go on', async (t) => {
  const { own, host } = t.context;
  const sent = httpRequest({
    ...{ host: '127.0.0.1', port: own, path: '/digest', method: 'POST', agent: false },
    headers: { host, expect: '100-continue', 'content-length': 5 },
  });
  sent.flushHeaders();
  await once(sent, 'continue');
  sent.end('hello');
  const [answer] = (await once(sent, 'response')) as [AsyncIterable<Buffer>];
  let text = '';
  for await (const chunk of answer) text += chunk.toString('utf8');
  t.is((JSON.parse(text) as { bytes: number }).bytes, 5);
});

test('an answer that comes before the body was sent reaches its caller', async (t) => {
  const { own, host } = t.context;
  const reply = await ask(own, host, '/early', { method: 'POST', body: Buffer.alloc(256 * 1024) });
  t.is(reply.status, 413);
  t.is(reply.body.toString('utf8'), 'large');
});

test('events arrive as they are sent', async (t) => {
  const { own, host } = t.context;
  const path = '/held-events';
  const sent = httpRequest({ host: '127.0.0.1', port: own, path, headers: { host } });
  sent.end();
  const [answer] = (await once(sent, 'response')) as [AsyncIterable<Buffer>];
  const events: string[] = [];
  for await (const chunk of answer) {
    events.push(chunk.toString('utf8'));
    // The second one is not sent before the first one has come.
    if (events.length === 1) t.is((await ask(own, host, '/release')).status, 200);
  }
  t.deepEqual(events, ['data: 0\n\n', 'data: 1\n\n']);
});

for (const [name, pick] of [
  ['the owner', (context: Context) => context.own],
  ['another agent', (context: Context) => context.other],
] as const) {
  test(`a large body goes up and down through ${name}`, async (t) => {
    const { host } = t.context;
    const port = pick(t.context);
    const piece = randomBytes(MiB);
    const hash = createHash('sha256');
    const sent = httpRequest({
      ...{ host: '127.0.0.1', port, path: '/digest', method: 'PUT', agent: false },
      headers: { host, 'content-length': LONG_MIB * MiB },
    });
    const answered = once(sent, 'response') as Promise<[AsyncIterable<Buffer>]>;
    for (let i = 0; i < LONG_MIB; i += 1) {
      hash.update(piece);
      if (!sent.write(piece)) await once(sent, 'drain');
    }
    sent.end();
    let text = '';
    for await (const chunk of (await answered)[0]) text += chunk.toString('utf8');
    t.like(JSON.parse(text), { bytes: LONG_MIB * MiB, sha256: hash.digest('hex') });

    const down = httpRequest({
      ...{ host: '127.0.0.1', port, path: `/bytes?mib=${LONG_MIB}`, agent: false },
      headers: { host },
    });
    down.end();
    const [answer] = (await once(down, 'response')) as [AsyncIterable<Buffer>];
    let bytes = 0;
    for await (const chunk of answer) bytes += chunk.length;
    t.is(bytes, LONG_MIB * MiB);
  });

  test(`a WebSocket echoes through ${name}`, async (t) => {
    const { api, id, host, privateHost } = t.context;
    const port = pick(t.context);
    const { token } = await newPortToken(api, id, PRIVATE);
    const socket = new WebSocket(`ws://127.0.0.1:${port}/echo`, {
      headers: { host: privateHost, 'x-service-token': token },
    });
    const [first] = (await once(socket, 'message')) as [Buffer];
    t.false(first.includes(token));
    t.like(JSON.parse(first.toString('utf8')), { 'x-forwarded-for': '127.0.0.1' });
    for (const length of [1, 200, 70_000, MiB]) {
      const bytes = randomBytes(length);
      const echoed = once(socket, 'message') as Promise<[Buffer]>;
      socket.send(bytes);
      t.true((await echoed)[0].equals(bytes));
    }
    socket.close();
    await once(socket, 'close');

    const status = async (given: string, path: string): Promise<number | undefined> => {
      const refused = new WebSocket(`ws://127.0.0.1:${port}${path}`, { headers: { host: given } });
      refused.on('error', () => undefined);
      const [, answer] = (await once(refused, 'unexpected-response')) as [
        unknown,
        { statusCode?: number },
      ];
      refused.terminate();
      return answer.statusCode;
    };
    t.is(await status(privateHost, '/echo'), 401);
    t.is(await status('x.localhost', '/echo'), 404);
    t.is(await status(host, '/elsewhere'), 403);
  });
}

test('200 requests at once are all answered', async (t) => {
  const { own, other, host } = t.context;
  const replies = await Promise.all(
    Array.from({ length: 200 }, (_, i) => ask(i % 4 === 0 ? other : own, host, '/events')),
  );
  t.true(replies.every(({ status, body }) => status === 200 && body.includes('data: 2')));
});

test('a request that arrives at another agent reaches the owner, by the same rules', async (t) => {
  const { other, api, id, host, privateHost } = t.context;
  t.is((await ask(other, host)).status, 200);
  t.is((await ask(other, privateHost)).status, 401);
  const { token } = await newPortToken(api, id, PRIVATE);
  t.is((await ask(other, privateHost, '/request', tokenHeader(token))).status, 200);
  await expose(api, id, 6);
  t.is((await ask(other, hostOf(6, id))).status, 502);
});

test('the internal port gives no tunnel without a token of the cluster', async (t) => {
  const admin = `http://127.0.0.1:${t.context.stack.environment['AGENT_ADMIN_PORT']}`;
  for (const proof of ['', 'X-Berth-Proof: x\r\n']) {
    const head = `GET /ingress-tunnel HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: berth-tunnel\r\n${proof}\r\n`;
    const [reply] = await sendRaw(admin, head);
    t.is(reply?.status, 400);
  }
});

test('a head that is too large, or that never ends, does not get far', async (t) => {
  const { own, host } = t.context;
  const base = `http://127.0.0.1:${own}`;
  const large = `GET / HTTP/1.1\r\nHost: ${host}\r\nX: ${'x'.repeat(40_000)}\r\n\r\n`;
  t.is((await sendRaw(base, large))[0]?.status, 431);
  const slow = connect(own, '127.0.0.1');
  slow.on('error', () => undefined);
  const closed = new Promise((resolve) => {
    slow.once('close', resolve);
  });
  slow.write(`GET / HTTP/1.1\r\nHost: ${host}\r\n`);
  const drip = setInterval(() => slow.write('X: x\r\n'), 1_000);
  // Meanwhile others are served.
  t.is((await ask(own, host)).status, 200);
  await closed;
  clearInterval(drip);
});

test('requests that two parsers could read differently are refused', async (t) => {
  const { own, host } = t.context;
  for (const { name, bytes, kind } of smugglingCorpus({ own: '/request', victim: '/victim' })) {
    const text = bytes.toString('latin1').replace('Host: test', `Host: ${host}`);
    const first = await firstStatus(own, Buffer.from(text, 'latin1'));
    // Bodies of any method pass, with a framing that is written anew.
    const isPlain = kind === 'plain' || / with (?:chunks|a length)$/u.test(name);
    if (kind === 'odd' && !isPlain) t.true(first === 0 || first >= 400, `${name}: ${first}`);
    const seen = await seenAt(t);
    t.is(seen.victims, 0, name);
    t.is(seen.url, '/request?a=b', name);
  }
});

test('a target that names another host is refused', async (t) => {
  const { own, host, privateHost } = t.context;
  const lines = [
    `GET http://${privateHost}/request HTTP/1.1`,
    `Host: ${host}`,
    'Connection: close',
  ];
  const [reply] = await sendRaw(`http://127.0.0.1:${own}`, `${lines.join('\r\n')}\r\n\r\n`);
  t.is(reply?.status, 400);
});

test('a service that listens publishes its port where that is enabled, and keeps it public', async (t) => {
  const { own, other, api, stack, backends } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { enable_service_ingress: true });
  const endpoints = async (): Promise<number[]> =>
    (await api.data<{ endpoints: { port: number }[] }>('GET', sandboxPath(id))).endpoints.map(
      ({ port }) => port,
    );
  t.is((await ask(own, hostOf(5000, id))).status, 401);
  backends.push(await startBackend(id, 5000, stack.directory));
  backends.push(await startBackend(id, 5001, stack.directory, '127.0.0.1'));
  backends.push(await startBackend(id, 5002, stack.directory));
  t.is((await ask(own, hostOf(5000, id))).status, 200);
  t.is((await ask(own, hostOf(5001, id))).status, 401);
  t.is((await ask(other, hostOf(5002, id))).status, 200);
  t.deepEqual(await endpoints(), [5000, 5002]);
  await expose(api, id, 5000);
  await api.call('DELETE', `${sandboxPath(id)}/ports/5000`);
  t.is((await ask(own, hostOf(5000, id))).status, 200);
  await backends.at(-3)?.stop('SIGKILL');
  await waitFor('the port to be private', async () => {
    return (await ask(own, hostOf(5000, id))).status === 401;
  });
  t.deepEqual(await endpoints(), [5002]);
});

test('an agent with a certificate speaks TLS, and loads the next one without a restart', async (t) => {
  const { stack, host } = t.context;
  const [port = 0] = await freePorts(1);
  const [cert, key] = [join(stack.directory, 'cert.pem'), join(stack.directory, 'key.pem')];
  await writeCertificate(cert, key);
  const agent = await stack.addAgent({
    ...{ INGRESS_PORT: String(port), INGRESS_TLS_CERT: cert, INGRESS_TLS_KEY: key },
    SANDBOX_RUNTIME: 'microvm',
  });
  await agent.start();
  const seen = async (): Promise<Seen> => {
    const ca = await readFile(cert);
    const sent = httpsRequest({
      ...{ host: '127.0.0.1', port, path: '/request', servername: host, ca, agent: false },
      headers: { host },
    });
    sent.end();
    const [answer] = (await once(sent, 'response')) as [AsyncIterable<Buffer>];
    let text = '';
    for await (const chunk of answer) text += chunk.toString('utf8');
    return JSON.parse(text) as Seen;
  };
  t.is((await seen()).headers['x-forwarded-proto'], 'https');

  const ca = await readFile(cert);
  const socket = new WebSocket(`wss://127.0.0.1:${port}/echo`, {
    ...{ headers: { host }, servername: host, ca },
  });
  await once(socket, 'message');
  socket.terminate();

  const serial = async (): Promise<string> => {
    const tls: TLSSocket = connectTls({ port, host: '127.0.0.1', rejectUnauthorized: false });
    await once(tls, 'secureConnect');
    const { fingerprint256 } = tls.getPeerCertificate();
    tls.destroy();
    return fingerprint256;
  };
  const first = await serial();
  await writeFile(cert, 'no certificate');
  await sleep(600);
  t.is(await serial(), first);
  await writeCertificate(cert, key);
  await waitFor('the new certificate', async () => {
    const all = await Promise.all([serial(), serial(), serial(), serial()]);
    return all.every((each) => each !== first);
  });
  // Each thread loads it by itself.
  const isServed = async (): Promise<boolean> =>
    (await seen().catch(() => undefined))?.headers['x-forwarded-proto'] === 'https';
  await waitFor('an answer under the new certificate', isServed);
  await agent.daemon.stop();
});
