import assert from 'node:assert';
import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { buffer } from 'node:stream/consumers';
import test from 'ava';
import { pino } from 'pino';
import type { BodyFraming } from '../../../shared/http/http-framing.ts';
import {
  PartRequestGate,
  type PartRequestHandler,
  PartRequests,
} from '../../../shared/links/part-requests.ts';
import { serveStrictly, STRICT_HTTP } from '../../../shared/http/strict-http.ts';

const secret = 'secret-of-a-cluster';
const hostId = 'host-0123456789ab';
const log = pino({ level: 'silent' });

/** Starts a host's internal port whose requests `handle` answers, and a sender of requests. */
async function openPort(handle: PartRequestHandler) {
  const gate = new PartRequestGate({ clusterSecrets: [secret], hostId, log });
  const server = createServer(STRICT_HTTP);
  serveStrictly(server, {
    handle: gate.admitting('object-forward', handle),
    render: (_request, body) => ({ contentType: 'text/plain', body }),
    onRefused: () => undefined,
  });
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => sockets.add(socket));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  const requests = new PartRequests({ clusterSecrets: [secret] }, 4);
  const begin = (method: string, framing: BodyFraming, more: string[] = []) =>
    requests.begin({
      ...{ purpose: 'object-forward', claims: {}, hostId, method, framing, target: '/x?y' },
      ...{
        baseUrl: `http://127.0.0.1:${port}`,
        rawHeaders: ['Host', 'h', 'X-Odd', 'é  ü', ...more],
      },
    });
  const close = (): void => {
    requests.close();
    server.closeAllConnections();
    server.close();
  };
  return { begin, sockets, [Symbol.dispose]: close };
}

const echo: PartRequestHandler = (request, response) => {
  if (request.headers.expect !== undefined) response.writeContinue();
  buffer(request)
    .then((body) => response.end(body))
    .catch(() => response.destroy());
};

async function answerTo(sent: ReturnType<PartRequests['begin']>): Promise<IncomingMessage> {
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  return answer;
}

const bodyOf = async (sent: ReturnType<PartRequests['begin']>): Promise<string> =>
  (await buffer(await answerTo(sent))).toString();

test('bodies with a length, in chunks, and absent ones arrive over one connection', async (t) => {
  using port = await openPort(echo);
  t.is(await bodyOf(port.begin('PUT', 5).end(Buffer.from('hello'))), 'hello');
  t.is(await bodyOf(port.begin('POST', 'chunked').end(Buffer.from('world'))), 'world');
  t.is(await bodyOf(port.begin('PUT', 'none').end()), '');
  t.is(await bodyOf(port.begin('GET', 'none').end()), '');
  t.is(await bodyOf(port.begin('DELETE', 0).end()), '');
  t.is(port.sockets.size, 1);
  const expecting = port.begin('PUT', 5, ['Expect', '100-continue']);
  expecting.once('continue', () => expecting.end(Buffer.from('later')));
  t.is(await bodyOf(expecting), 'later');
});

test('a connection whose answer came before the end of the body is not used again', async (t) => {
  using port = await openPort((request, response) => {
    if (request.method === 'PUT') response.writeHead(403).end('no');
    else response.end('yes');
  });
  const early = port.begin('PUT', 'chunked');
  early.write(Buffer.from('x'));
  t.is(await bodyOf(early), 'no');
  early.on('error', () => undefined);
  early.end();
  t.is(await bodyOf(port.begin('GET', 'none').end()), 'yes');
  t.is(port.sockets.size, 2);
});

test('a sender that announces a body for a method without one is refused', async (t) => {
  let isReached = false;
  using port = await openPort((_request, response) => {
    isReached = true;
    response.end();
  });
  for (const method of ['GET', 'HEAD', 'DELETE', 'OPTIONS']) {
    const sent = port.begin(method, 'chunked');
    sent.on('error', () => undefined);
    const answer = await answerTo(sent.end('DELETE /y HTTP/1.1\r\n'));
    t.is(answer.statusCode, 400, method);
    answer.resume();
  }
  t.false(isReached);
});

test('a body that is not as long as announced does not become another request', async (t) => {
  const urls: (string | undefined)[] = [];
  using port = await openPort((request, response) => {
    urls.push(request.url);
    echo(request, response, {});
  });
  const sent = port.begin('PUT', 5);
  sent.on('error', () => undefined);
  sent.end(Buffer.from('helloGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n'));
  t.is(await bodyOf(sent), 'hello');
  const next = port.begin('GET', 'none').end();
  await once(next, 'response').catch((error: unknown) => assert(error instanceof Error));
  t.false(urls.includes('/smuggled'));
});
