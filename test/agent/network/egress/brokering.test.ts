import { createHash, randomBytes, X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { type IncomingMessage, request as requestHttp, type RequestListener } from 'node:http';
import type { Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import test from 'ava';
import { WebSocketServer, WebSocket } from 'ws';
import { authorityOf } from '../../../../agent/network/egress/authority.ts';
import { EgressLab, readAll } from '../../../helpers/egress-lab.ts';
import { isFull } from '../../../helpers/full.ts';

const SECRET = 'sk-0123456789-abcdefghij';
const NAMES = { 'api.test': '127.0.0.2', 'other.test': '127.0.0.3', 'gateway.test': '127.0.0.4' };
const HEADERS = { Authorization: `Bearer ${SECRET}`, 'X-Org': 'org-0123456789' };
const POLICY = {
  default: 'deny',
  allow: [{ target: 'api.test', transform: { headers: HEADERS } }, 'other.test'],
} as const;

interface Answer {
  readonly status: number | undefined;
  readonly headers: IncomingMessage['headers'];
  readonly trailers: IncomingMessage['trailers'];
  readonly body: string;
  /** Everything together. */
  readonly raw: string;
}

/** Sends a request over a connection of the guest. */
async function ask(
  socket: Socket,
  options: { host: string; path?: string; method?: string; headers?: Record<string, string> },
  body?: string | Buffer,
): Promise<Answer> {
  const { host, path = '/', method = 'GET', headers = {} } = options;
  const sent = requestHttp({
    ...{ path, method, createConnection: () => socket },
    headers: { host, ...headers },
  });
  sent.end(body);
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  const got = await text(answer);
  const raw = [answer.statusMessage, ...answer.rawHeaders, got, ...answer.rawTrailers].join('\n');
  const { statusCode: status, trailers } = answer;
  return { status, headers: answer.headers, trailers, body: got, raw };
}

/** Tells the request that it got, in every way in which an answer can. */
const echo: RequestListener = (request, response) => {
  const seen = JSON.stringify({ url: request.url, headers: request.headers });
  const authorization = request.headers.authorization ?? 'none';
  response.writeHead(200, `for ${authorization}`, {
    'x-echo': authorization,
    trailer: 'x-last',
    location: 'https://other.test/',
  });
  for (const part of seen.match(/.{1,7}/gu) ?? []) response.write(part);
  response.addTrailers({ 'x-last': authorization });
  response.end();
};

test('a request gets its headers on the way, and no part of the answer has them', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const requests: IncomingMessage[] = [];
  const api = await lab.serveHttps('127.0.0.2', 'api.test', (request, response) => {
    requests.push(request);
    echo(request, response);
  });
  lab.setPolicy(POLICY);
  const socket = await lab.connectTls(api, 'api.test', { ca: [lab.authority.certificate] });
  const headers = { authorization: 'Bearer of the guest', 'X-ORG': 'a', range: 'bytes=0-9' };
  const answer = await ask(socket, { host: 'api.test', path: '/v1?a=b', headers });
  const [request] = requests;
  t.is(request?.headers.authorization, `Bearer ${SECRET}`);
  t.is(request?.headers['x-org'], 'org-0123456789');
  t.deepEqual(request?.headersDistinct['x-org'], ['org-0123456789']);
  t.is(request?.headers['accept-encoding'], 'identity');
  t.is(request?.headers.range, undefined);
  t.is(request?.url, '/v1?a=b');
  t.is(answer.status, 200);
  t.false(answer.raw.includes(SECRET));
  t.false(answer.raw.includes('org-0123456789'));
  t.true(answer.body.includes('"host":"api.test"'));
  t.regex(answer.headers['x-echo'] as string, /^\*+$/u);
  t.regex(answer.trailers['x-last'] ?? '', /^\*+$/u);
  // Where it leads is for the guest to follow, and there it has no rule.
  t.is(answer.headers.location, 'https://other.test/');
});

test('only hosts of a rule are spoken for; others have the guest’s own TLS', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const seen: (string | undefined)[] = [];
  const other = await lab.serveHttps('127.0.0.3', 'other.test', (request, response) => {
    seen.push(request.headers.authorization);
    response.end('other');
  });
  lab.setPolicy(POLICY);
  const socket = await lab.connectTls(other, 'other.test');
  t.not(socket.getPeerX509Certificate()?.issuer, 'CN=Berth egress of sandbox');
  t.is((await ask(socket, { host: 'other.test' })).body, 'other');
  t.deepEqual(seen, [undefined]);
});

test('a connection for one host serves no other, and no request over plain HTTP has secrets', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const seen: (string | undefined)[] = [];
  const note: RequestListener = (request, response) => {
    seen.push(request.headers.authorization);
    response.end('plain');
  };
  const api = await lab.serveHttps('127.0.0.2', 'api.test', note);
  const plain = await lab.serveHttp('127.0.0.2', note);
  lab.setPolicy(POLICY);
  const socket = await lab.connectTls(api, 'api.test');
  t.is((await ask(socket, { host: 'other.test' })).status, 421);
  t.is((await ask(await lab.connect(plain), { host: 'api.test' })).body, 'plain');
  t.deepEqual(seen, [undefined]);
});

test('compressed answers are searched, too', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const api = await lab.serveHttps('127.0.0.2', 'api.test', (request, response) => {
    response.setHeader('content-encoding', request.url?.slice(1) ?? '');
    response.end(gzipSync(`you sent ${request.headers.authorization}`));
  });
  lab.setPolicy(POLICY);
  const answer = await ask(await lab.connectTls(api, 'api.test'), {
    host: 'api.test',
    path: '/gzip',
  });
  t.regex(answer.body, /^you sent \*+$/u);
  t.is(answer.headers['content-encoding'], undefined);
  for (const path of ['/strange', '/constructor', '/__proto__']) {
    const strange = await ask(await lab.connectTls(api, 'api.test'), { host: 'api.test', path });
    t.is(strange.status, 502, path);
  }
});

test('answers in which no secret would be found are neither asked for nor passed on', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const charsets: (string | undefined)[] = [];
  const api = await lab.serveHttps('127.0.0.2', 'api.test', (request, response) => {
    charsets.push(request.headersDistinct['accept-charset']?.join());
    const charset = request.url?.slice(1) ?? '';
    response.setHeader('content-type', `text/plain; Charset="${charset}"`);
    response.end(`you sent ${request.headers.authorization}`);
  });
  lab.setPolicy(POLICY);
  const call = async (charset: string, method = 'GET'): Promise<number | undefined> => {
    const socket = await lab.connectTls(api, 'api.test');
    const headers = { 'accept-charset': charset };
    return (await ask(socket, { host: 'api.test', method, path: `/${charset}`, headers })).status;
  };
  const wide = ['UTF-16', 'utf-16le', 'UTF-32BE', 'utf-7', 'ISO-10646-UCS-2', 'IBM037', 'cp500'];
  for (const charset of wide) t.is(await call(charset), 502, charset);
  t.is(await call('UTF-16', 'HEAD'), 200);
  for (const charset of ['utf-8', 'US-ASCII', 'iso-8859-1', 'windows-1252', 'gb18030', 'IBM850']) {
    t.is(await call(charset), 200, charset);
  }
  t.deepEqual([...new Set(charsets)], [undefined]);
});

test('a server whose certificate does not verify gets nothing', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  let count = 0;
  const note: RequestListener = (_request, response) => {
    count += 1;
    response.end();
  };
  const authority = await authorityOf(randomBytes(32), 'stranger');
  const forged = await lab.serveHttps('127.0.0.2', 'api.test', note, { authority });
  const misnamed = await lab.serveHttps('127.0.0.2', 'other.test', note);
  lab.setPolicy(POLICY);
  for (const site of [forged, misnamed]) {
    const answer = await ask(await lab.connectTls(site, 'api.test'), { host: 'api.test' });
    t.is(answer.status, 502);
    t.regex(answer.body, /api.test could not be reached/u);
  }
  t.is(count, 0);
});

test('requests are forwarded to another URL, whose secret parts stay with the host', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const gateway = await lab.serveHttps('127.0.0.4', 'gateway.test', echo);
  const forward = `https://gateway.test:${gateway.port}/tenants/0123456789abcdefghij/?key=k-987654321`;
  const rule = { target: 'api.test', transform: { headers: HEADERS }, forward_url: forward };
  lab.setPolicy({ default: 'deny', allow: [rule] });
  const site = { address: '127.0.0.2', port: 443 };
  const tls = await lab.connectTls(site, 'api.test', { ca: [lab.authority.certificate] });
  const plain = await lab.connect({ ...site, port: 80 });
  for (const socket of [tls, plain]) {
    // The gateway learns which host was judged, whatever the guest says.
    const headers = { 'x-forwarded-host': 'other.test' };
    const { body, raw } = await ask(socket, { host: 'api.test', path: '/v1/x?q=1', headers });
    t.regex(body, /"host":"gateway.test:\d+"/u);
    t.regex(body, /"x-forwarded-host":"api.test"/u);
    t.regex(body, /"url":"\/tenants\/\*{20}\/v1\/x\?\*+&q=1"/u);
    t.notRegex(raw, /0123456789abcdefghij|k-987654321|sk-012/u);
  }
});

test('the server of a forward_url learns the host that was judged, and no text of the guest', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const seen: string[] = [];
  const gateway = await lab.serveHttps('127.0.0.4', 'gateway.test', (request, response) => {
    const naming = request.rawHeaders.filter((_each, at, all) =>
      /forwarded|^x.org$/iu.test(all[at - (at % 2)] ?? ''),
    );
    seen.push(naming.join());
    response.end();
  });
  const forward = `https://gateway.test:${gateway.port}/`;
  const rule = { target: 'api.test', transform: { headers: HEADERS }, forward_url: forward };
  lab.setPolicy({ default: 'deny', allow: [rule] });
  for (const host of ['api.test', 'API.test.', 'api.test:80', 'Api.Test.:443']) {
    const socket = await lab.connect({ address: '127.0.0.2', port: 80 });
    const headers = {
      ...{ 'x-forwarded-host': 'other.test', X_Forwarded_Host: 'other.test' },
      ...{ 'x.forwarded.host': 'other.test', 'X+Forwarded-Host': 'other.test' },
      ...{ forwarded: 'host=other.test', x_org: 'other', 'x.org': 'other' },
    };
    t.is((await ask(socket, { host, headers })).status, 200, host);
  }
  t.deepEqual([...new Set(seen)], ['X-Forwarded-Host,api.test,X-Org,org-0123456789']);
});

test('no path leads out of that of a forward_url', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const seen: (string | undefined)[] = [];
  const gateway = await lab.serveHttps('127.0.0.4', 'gateway.test', (request, response) => {
    seen.push(request.url);
    response.end();
  });
  const forwardTo = (path: string): void =>
    lab.setPolicy({
      default: 'deny',
      allow: [{ target: 'api.test', forward_url: `https://gateway.test:${gateway.port}${path}` }],
    });
  const call = async (path: string): Promise<number | undefined> => {
    const socket = await lab.connect({ address: '127.0.0.2', port: 80 });
    return (await ask(socket, { host: 'api.test', path })).status;
  };
  forwardTo('/tenants/42');
  for (const path of [
    ...['/../../admin', '/a/..', '/.', '/./a', '/..?q', '/..;x/admin', '/%2e%2E/admin', '/.%2e'],
    ...[
      '/..%2fadmin',
      '/a%2F..%2f..',
      '/..\\admin',
      '/a%5C..%5c',
      '/..%3Bx/admin',
      '//../a',
      '/..#x',
    ],
  ]) {
    t.is(await call(path), 400, path);
  }
  const allowed = ['/a..b/...', '/a/.well-known/%2efile', '/a?x=/../..', '/%252e'];
  for (const path of allowed) t.is(await call(path), 200, path);
  forwardTo('/'); // There is nothing to lead out of.
  t.is(await call('/a/../b'), 200);
  t.deepEqual(seen, [...allowed.map((path) => `/tenants/42${path}`), '/a/../b']);
});

test('HTTP/2 is not offered, and each sandbox has an authority of its own for good', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const api = await lab.serveHttps('127.0.0.2', 'api.test', echo);
  lab.setPolicy(POLICY);
  const socket = await lab.connectTls(api, 'api.test', { ALPNProtocols: ['h2', 'http/1.1'] });
  t.is(socket.alpnProtocol, 'http/1.1');
  await t.throwsAsync(lab.connectTls(api, 'api.test', { ALPNProtocols: ['h2'] }));
  const key = randomBytes(32);
  const [first, again, fork] = await Promise.all([
    authorityOf(key, 'sbx-1'),
    authorityOf(key, 'sbx-1'),
    authorityOf(key, 'sbx-2'),
  ]);
  t.is(first.key, again.key);
  const certificate = new X509Certificate(first.certificate);
  t.true(certificate.ca);
  t.true(certificate.verify(new X509Certificate(again.certificate).publicKey));
  t.false(certificate.verify(new X509Certificate(fork.certificate).publicKey));
  await t.throwsAsync(lab.connectTls(api, 'api.test', { ca: [fork.certificate] }));
});

test('bodies of any length pass both ways, as they come', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const api = await lab.serveHttps('127.0.0.2', 'api.test', (request, response) => {
    const hash = createHash('sha256');
    request.on('data', (chunk: Buffer) => hash.update(chunk));
    request.once('end', () => {
      response.setHeader('content-length', 8_000_000);
      response.write(hash.digest('hex'));
      response.end(Buffer.alloc(8_000_000 - 64, 'x'));
    });
  });
  lab.setPolicy(POLICY);
  const body = randomBytes(5_000_000);
  const socket = await lab.connectTls(api, 'api.test');
  const headers = { expect: '100-continue', 'transfer-encoding': 'chunked' };
  const answer = await ask(socket, { host: 'api.test', method: 'POST', headers }, body);
  t.is(answer.body.slice(0, 64), createHash('sha256').update(body).digest('hex'));
  t.is(answer.body.length, 8_000_000);
});

test('events are passed on one by one', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  let next: (() => void) | undefined;
  const api = await lab.serveHttps('127.0.0.2', 'api.test', (_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: 1\n\n');
    next = () => response.end('data: 2\n\n');
  });
  lab.setPolicy(POLICY);
  const socket = await lab.connectTls(api, 'api.test');
  const sent = requestHttp({ createConnection: () => socket, headers: { host: 'api.test' } }).end();
  const [answer] = (await once(sent, 'response')) as [IncomingMessage];
  const [first] = (await once(answer, 'data')) as [Buffer];
  t.is(first.toString(), 'data: 1\n\n');
  next?.();
  t.is(await text(answer), 'data: 2\n\n');
});

test('WebSockets are opened with the headers, and do not tell them', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const sockets = new WebSocketServer({ noServer: true, perMessageDeflate: true });
  const api = await lab.serveHttps('127.0.0.2', 'api.test', (_request, response) => response.end());
  lab.onUpgrade(api, (request, socket, head) =>
    sockets.handleUpgrade(request, socket, head, (client) => {
      client.send(`hello ${request.headers.authorization}`);
      client.on('message', (data, isBinary) => client.send(data, { binary: isBinary }));
    }),
  );
  lab.setPolicy(POLICY);
  const guest = await lab.connectTls(api, 'api.test');
  const client = new WebSocket('ws://api.test/', { createConnection: () => guest });
  const [greeting] = (await once(client, 'message')) as [Buffer];
  t.regex(greeting.toString(), /^hello \*+$/u);
  client.send('a'.repeat(100_000));
  const [echoed] = (await once(client, 'message')) as [Buffer];
  t.is(echoed.length, 100_000);
  client.close();
  await once(client, 'close');
});

test('other protocols are not switched to', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const seen: IncomingMessage['headers'][] = [];
  const site = await lab.serveHttp('127.0.0.3', (request, response) => {
    seen.push(request.headers);
    response.end('plain');
  });
  lab.setPolicy(POLICY);
  const socket = await lab.connect(site);
  socket.write(
    'GET / HTTP/1.1\r\nHost: other.test\r\nConnection: Upgrade, HTTP2-Settings, close\r\n' +
      'Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n',
  );
  t.regex((await readAll(socket)).toString(), /^HTTP\/1.1 200[^]*plain/u);
  t.deepEqual(Object.keys(seen[0] ?? {}).toSorted(), ['connection', 'host']);
});

test('a request on a kept connection that breaks is repeated only if that has no effect', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const seen: string[] = [];
  const api = await lab.serveHttps('127.0.0.2', 'api.test', (request, response) => {
    const isBroken = seen.at(-1) === '/kept';
    seen.push(request.url ?? '');
    if (isBroken) request.socket.destroy();
    else response.end('done');
  });
  lab.setPolicy(POLICY);
  const call = async (method: string, path: string): Promise<number | undefined> => {
    const socket = await lab.connectTls(api, 'api.test');
    return (await ask(socket, { host: 'api.test', method, path })).status;
  };
  t.is(await call('GET', '/kept'), 200);
  t.is(await call('GET', '/read'), 200);
  t.is(await call('GET', '/kept'), 200);
  t.is(await call('POST', '/pay'), 502);
  t.deepEqual(seen, ['/kept', '/read', '/read', '/kept', '/pay']);
});

test('a kept connection serves only requests to the address of the name that it leads to', async (t) => {
  const addresses = ['127.0.0.2', '127.0.0.3'] as const;
  await using lab = await EgressLab.open({ 'api.test': addresses });
  let port = 0;
  const seen: string[] = [];
  const serve = async (address: string) => {
    const site = await lab.serveHttps(
      address,
      'api.test',
      (request, response) => {
        seen.push(`${address} ${request.socket.remotePort}`);
        response.end();
      },
      { port },
    );
    port = site.port;
    return site;
  };
  const [one, two] = [await serve(addresses[0]), await serve(addresses[1])];
  lab.setPolicy(POLICY);
  for (const site of [one, two, two]) {
    t.is((await ask(await lab.connectTls(site, 'api.test'), { host: 'api.test' })).status, 200);
  }
  t.deepEqual(
    seen.map((each) => each.split(' ')[0]),
    ['127.0.0.2', '127.0.0.3', '127.0.0.3'],
  );
  t.is(seen[1], seen[2], 'the connection to the second one is kept');
});

test('a rule that is taken back counts for the next request of a connection', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const api = await lab.serveHttps('127.0.0.2', 'api.test', echo);
  lab.setPolicy(POLICY);
  const socket = await lab.connectTls(api, 'api.test');
  lab.setPolicy({ default: 'deny', allow: ['other.test'] });
  t.is((await ask(socket, { host: 'api.test' })).status, 403);
});

(isFull ? test : test.skip)('a head that does not come ends its connection', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const api = await lab.serveHttps('127.0.0.2', 'api.test', echo);
  lab.setPolicy(POLICY);
  const socket = await lab.connect(api);
  socket.write('GET / HTTP/1.1\r\nHost: api.test\r\n');
  const begun = performance.now();
  t.regex((await readAll(socket)).toString(), /^(HTTP\/1.1 408|$)/u);
  t.true(performance.now() - begun < 60_000);
});
