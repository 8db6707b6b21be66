/*
 * Requests whose end two HTTP parsers could see in different places, at every port: none of them
 * may become a part of somebody else's request between control and the hosts.
 */
import { once } from 'node:events';
import { createServer, type Socket } from 'node:net';
import anyTest, { type TestFn } from 'ava';
import { PartRequests } from '../../shared/links/part-requests.ts';
import type { ApiClient } from '../helpers/api.ts';
import { createDisk } from '../helpers/disks.ts';
import { hostIdOf } from '../helpers/host.ts';
import { ObjectClient, s3UrlOf } from '../helpers/objects.ts';
import { provoke, sendRaw } from '../helpers/raw-http.ts';
import { smugglingCorpus } from '../helpers/smuggling.ts';
import { Stack } from '../helpers/stack.ts';

interface Context {
  stack: Stack;
  victim: ApiClient;
  disk: string;
  /** The ports of the disk's host, of another host that forwards to it, and of control. */
  urls: Record<Port, string>;
}

const test = anyTest as TestFn<Context>;
const PORTS = ['control', 'other', 'handler', 'internal'] as const;
type Port = (typeof PORTS)[number];
const OWN = '/dsk-0000000000000000/x';

test.before(async (t) => {
  const stack = await Stack.start();
  Object.assign(t.context, { stack });
  const victim = await stack.newClient();
  const { id: disk } = await createDisk(victim);
  const handler = s3UrlOf(stack);
  await new ObjectClient(handler, victim.key).put(disk, 'kept', 'content');
  const agent = await stack.addAgent();
  await agent.start();
  const other = agent.environment['AGENT_PUBLIC_URL'] ?? '';
  const internal = `http://127.0.0.1:${stack.environment['AGENT_ADMIN_PORT']}`;
  const urls = { control: stack.baseUrl, other, handler, internal };
  Object.assign(t.context, { victim, disk, urls });
});

test.after.always(async (t) => {
  await t.context.stack.stop();
});

/** The answer to the next request of the object's owner through this port. */
async function nextAnswer({ victim, disk, urls }: Context, port: Port): Promise<string> {
  const way = port === 'internal' ? 'handler' : port;
  const { status, text } = await new ObjectClient(urls[way], victim.key).get(disk, 'kept');
  return `${status} ${text}`;
}

for (const port of PORTS) {
  test(`no request becomes part of another one: ${port}`, async (t) => {
    const corpus = smugglingCorpus({ own: OWN, victim: `/${t.context.disk}/kept` });
    t.true(corpus.length > 250);
    for (const { name, bytes, kind } of corpus) {
      const { statuses, isClosed } = await provoke(
        t.context.urls[port],
        bytes,
        // A parser that reads it the same way waits for more bytes.
        kind === 'plain' ? 200 : undefined,
      );
      t.is(await nextAnswer(t.context, port), '200 content', name);
      t.true(statuses.length <= 1, `${name}: ${statuses.join()}`);
      const [status = 400] = statuses;
      const expected = kind === 'odd' ? [400, 417] : [400, 403];
      t.true(expected.includes(status), `${name}: ${status}`);
      t.true(isClosed || kind === 'plain', `${name}: left open`);
    }
  });
}

test('a request behind a refused one is not begun, even with a valid key', async (t) => {
  const { victim, disk, urls } = t.context;
  const client = new ObjectClient(urls.handler, victim.key);
  for (const port of ['control', 'other', 'handler'] as const) {
    await client.put(disk, 'behind', 'content');
    const odd = `GET ${OWN} HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n\r\nx`;
    const behind = `DELETE /${disk}/behind HTTP/1.1\r\nHost: t\r\nAuthorization: ${victim.key}\r\n\r\n`;
    const { statuses, isClosed } = await provoke(urls[port], Buffer.from(`${odd}${behind}`));
    t.deepEqual({ statuses, isClosed }, { statuses: [400], isClosed: true }, port);
    t.is((await client.get(disk, 'behind')).text, 'content', port);
  }
});

test('trailers have no effect on a request', async (t) => {
  const { victim, disk, urls } = t.context;
  for (const port of ['control', 'other', 'handler'] as const) {
    const head = ['Host: t', 'Transfer-Encoding: chunked', 'Connection: close'].join('\r\n');
    const send = async (credentials: string, trailer: string): Promise<number | undefined> => {
      const lines = `PUT /${disk}/trailed HTTP/1.1\r\n${head}\r\n${credentials}\r\n`;
      const [reply] = await sendRaw(urls[port], `${lines}5\r\nhello\r\n0\r\n${trailer}\r\n`);
      return reply?.status;
    };
    const key = `Authorization: ${victim.key}\r\n`;
    t.is(await send('', key), 403, port);
    t.is(await send(key, 'x-amz-meta-a: b\r\n'), 200, port);
    const got = await new ObjectClient(urls.handler, victim.key).get(disk, 'trailed');
    t.deepEqual([got.text, got.headers.get('x-amz-meta-a')], ['hello', null], port);
  }
});

/** The bytes with which a part of the cluster asks for an object. */
async function captured({ stack, victim, disk }: Context, hostId: string): Promise<string> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  const requests = new PartRequests(
    { clusterSecrets: [stack.environment['CLUSTER_SECRET'] ?? ''] },
    0,
  );
  const sent = requests.begin({
    ...{ purpose: 'object-forward', hostId, baseUrl: `http://127.0.0.1:${port}`, method: 'GET' },
    ...{ target: `/${disk}/kept?response-content-language=b`, framing: 'none' },
    claims: { address: '127.0.0.1', hopsLeft: '1' },
    rawHeaders: ['Host', 'test', 'Authorization', victim.key],
  });
  sent.on('error', () => undefined);
  sent.end();
  const [socket] = (await once(server, 'connection')) as [Socket];
  const [bytes] = (await once(socket, 'data')) as [Buffer];
  socket.destroy();
  server.close();
  requests.close();
  return bytes.toString('latin1').replace('Connection: keep-alive', 'Connection: close');
}

test('the internal port accepts each request of the cluster once and only unchanged', async (t) => {
  const { stack, urls, disk } = t.context;
  const hostId = await hostIdOf(stack.environment);
  const send = async (bytes: string): Promise<number[]> => {
    const { statuses } = await provoke(urls.internal, Buffer.from(bytes, 'latin1'));
    return [...statuses];
  };
  const good = await captured(t.context, hostId);
  t.deepEqual(await send(good), [200]);
  t.deepEqual(await send(good), [403], 'a second time');
  t.deepEqual(await send(await captured(t.context, 'host-000000000000')), [403], 'another host');
  const changes: ((request: string) => string)[] = [
    (request) => request.replace('GET', 'DELETE'),
    (request) => request.replace('GET', 'HEAD'),
    (request) => request.replace('GET', 'PUT'),
    (request) => request.replace('/kept', '/other'),
    (request) => request.replace('?response-content-language=b', '?response-content-language=c'),
    (request) => request.replace('?response-content-language=b', ''),
    (request) => request.replace(`/${disk}`, '/dsk-0000000000000000'),
    (request) => request.replace(/Authorization: .*\r\n/u, ''),
    (request) => request.replace('Host: test', 'Host: tess'),
    (request) => request.replace('Host: test', 'Host: test\r\nContent-Length: 0'),
    (request) => request.replace('Host: test', 'Host: test\r\nX-Amz-Meta-A: b'),
    (request) => request.replace(/(x-berth-proof: ...)./iu, '$1A'),
    (request) => request.replace(/x-berth-proof: .*\r\n/iu, ''),
  ];
  for (const [index, change] of changes.entries()) {
    const request = await captured(t.context, hostId);
    t.deepEqual(await send(change(request)), [403], `change ${index}`);
  }
  t.is(await nextAnswer(t.context, 'handler'), '200 content');
});

test('a peer outside the cluster cannot keep a connection to the internal port', async (t) => {
  const { urls } = t.context;
  for (const path of ['/healthz', '/readyz', '/metrics', '/nowhere', OWN, '/data/file']) {
    const one = `GET ${path} HTTP/1.1\r\nHost: t\r\n\r\n`;
    const { statuses, isClosed } = await provoke(urls.internal, Buffer.from(one + one));
    t.deepEqual([statuses.length, isClosed], [1, true], path);
  }
});
