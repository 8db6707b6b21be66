import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { PROXY_LIMITS } from '../../../../agent/network/egress/limits.ts';
import type { EgressPolicy } from '../../../../shared/schemas/network-policy.ts';
import { clientHello, inRecords, tlsRecord } from '../../../helpers/client-hellos.ts';
import { EgressLab, readAll } from '../../../helpers/egress-lab.ts';
import { waitFor } from '../../../helpers/wait.ts';

const NAMES = {
  'good.test': '127.0.0.2',
  'shared.test': '127.0.0.2',
  'evil.test': '127.0.0.3',
  'sub.evil.test': '127.0.0.3',
  'cdn.evil.test': '127.0.0.5',
  'inside.test': '127.0.0.9',
};
const ALLOW_GOOD = { default: 'deny', allow: ['good.test'] } as const;

const tell =
  (text: string) =>
  (_request: IncomingMessage, response: { end: (text: string) => void }): void =>
    response.end(text);

const UPGRADE = 'Connection: Upgrade\r\nUpgrade: websocket\r\n';

/** Sends a request as it is, and reads until the connection ends. */
async function send(socket: Socket, text: string): Promise<string> {
  socket.write(text);
  return (await readAll(socket)).toString('latin1');
}

const get = (host: string, more = ''): string =>
  `GET / HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n${more}\r\n`;

test('TLS is passed on by the name in its ClientHello, to an address of that name', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const good = await lab.serveHttps('127.0.0.2', 'good.test', tell('good'));
  await lab.serveHttps('127.0.0.3', 'evil.test', tell('evil'), { port: good.port });
  lab.setPolicy(ALLOW_GOOD);

  const allowed = await lab.connectTls(good, 'good.test');
  t.regex(await send(allowed, get('good.test')), /good$/u);
  // The name counts, not the address that the guest gave.
  const misled = await lab.connectTls({ ...good, address: '127.0.0.3' }, 'good.test');
  t.regex(await send(misled, get('good.test')), /good$/u);
  await t.throwsAsync(lab.connectTls(good, 'shared.test'), { message: /ECONNRESET|disconnected/u });
  await t.throwsAsync(lab.connectTls(good, 'evil.test'), { message: /ECONNRESET|disconnected/u });
  const decisions = lab.slot.decisions.map(({ time: _time, ...rest }) => rest);
  const common = { protocol: 'tcp', port: good.port } as const;
  t.deepEqual(decisions, [
    { ...common, name: 'evil.test', allowed: false, rule: 'default', count: 1 },
    { ...common, name: 'shared.test', allowed: false, rule: 'default', count: 1 },
    { ...common, name: 'good.test', allowed: true, rule: 'good.test', count: 2 },
  ]);
});

test('without a name the address decides', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const server = await lab.serve('127.0.0.4', (socket) => void socket.end('hello'));
  lab.setPolicy({ default: 'deny', allow: ['127.0.0.4'] });
  t.is((await readAll(await lab.connect(server))).toString(), 'hello'); // The server speaks first.
  const binary = await lab.connect(server);
  t.is(await send(binary, '\0\u0001'), 'hello');
  lab.setPolicy({ default: 'deny', allow: ['good.test'] });
  t.is(await send(await lab.connect(server), '\0\u0001'), '');
});

test('a name that is denied cannot be hidden behind its address', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const evil = await lab.serve('127.0.0.3', (socket) => void socket.end('evil'));
  const other = await lab.serve('127.0.0.4', (socket) => void socket.end('other'));
  lab.setPolicy({ default: 'allow', deny: ['evil.test'] });
  t.is(await send(await lab.connect(evil), '\0'), '');
  t.is(await send(await lab.connect(other), '\0'), 'other');
  // Nor behind another name, which has another address.
  t.notRegex(await send(await lab.connect(evil), get('good.test')), /evil$/u);
});

test('a slot has so many names under way at most, and leaves the resolver to others', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  lab.setPolicy({ default: 'allow', deny: ['evil.test'] });
  const judge = (name: string) => lab.slot.judge({ name, address: '127.0.0.2' });
  const release = lab.holdNames();
  const under = Array.from({ length: PROXY_LIMITS.namesPerSlotMax }, (_, at) => `n${at}.test`);
  const judged = Promise.allSettled(under.map(judge));
  await t.throwsAsync(judge('good.test'), { message: /too many names/u });
  const again = judge('n0.test');
  release();
  t.deepEqual((await again).addresses, [], 'a name counts once');
  await judged;
  t.deepEqual((await judge('good.test')).addresses, ['127.0.0.2']);
});

test('the proxy looks up no name that no rule allows', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const site = await lab.serveHttp('127.0.0.2', tell('good'));
  const policy = {
    default: 'deny',
    allow: ['127.0.0.2', 'shared.test'],
    deny: ['evil.test'],
  } as const;
  lab.setPolicy(policy);
  const release = lab.holdNames(); // A look-up would take seconds, and fail.
  const answer = await send(await lab.connect(site), get('good.test'));
  t.regex(answer, /^HTTP\/1.1 502 [^]*good.test has no address that may be reached/u);
  release();
  t.regex(await send(await lab.connect(site), get('shared.test')), /good$/u);
  lab.setPolicy({ ...policy, dns: 'open' });
  t.regex(await send(await lab.connect(site), get('good.test')), /good$/u);
});

test('each request of a connection is judged by its own Host', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const seen: string[] = [];
  const good = await lab.serveHttp('127.0.0.2', (request, response) => {
    seen.push(`${request.headers.host} ${request.url}`);
    response.end('good');
  });
  lab.setPolicy(ALLOW_GOOD);
  const socket = await lab.connect(good);
  const answer = await send(
    socket,
    `GET /1 HTTP/1.1\r\nHost: good.test\r\n\r\nGET /2 HTTP/1.1\r\nHost: GOOD.test.:80\r\n\r\n` +
      `GET /3 HTTP/1.1\r\nHost: shared.test\r\n\r\nGET /4 HTTP/1.1\r\nHost: good.test\r\n\r\n`,
  );
  t.deepEqual(seen.slice(0, 2), ['good.test /1', 'GOOD.test.:80 /2']);
  t.false(seen.some((each) => each.includes('/3')));
  t.regex(answer, /HTTP\/1.1 403 Forbidden[^]*the network policy denies shared.test/u);
});

test('a kept connection serves no request of a guest that connects to another address', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const first = await lab.serveHttp('127.0.0.2', tell('first'));
  const second = await lab.serveHttp('127.0.0.3', tell('second'), first.port);
  lab.setPolicy({ default: 'allow' });
  t.regex(await send(await lab.connect(first), get('app.test')), /first$/u);
  t.regex(await send(await lab.connect(second), get('app.test')), /second$/u);
});

test('requests whose end or host is in doubt go nowhere', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  let count = 0;
  const good = await lab.serveHttp('127.0.0.2', (_request, response) => {
    count += 1;
    response.end();
  });
  lab.setPolicy(ALLOW_GOOD);
  const line = 'POST / HTTP/1.1\r\n';
  const host = 'Host: good.test\r\n';
  const shapes = [
    `${line}${host}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
    `${line}${host}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello`,
    `${line}${host}Content-Length: +5\r\n\r\nhello`,
    `${line}${host}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`,
    `${line}${host}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n`,
    `${line}${host}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n`,
    `${line}${host}Host: shared.test\r\nContent-Length: 0\r\n\r\n`,
    `${line}Host: good.test evil.test\r\nContent-Length: 0\r\n\r\n`,
    `${line}Host: good.test@evil.test\r\nContent-Length: 0\r\n\r\n`,
    `${line}Content-Length: 0\r\n\r\n`,
    `GET http://shared.test/ HTTP/1.1\r\n${host}\r\n`,
    `CONNECT shared.test:80 HTTP/1.1\r\n${host}\r\n`,
    `GET / HTTP/1.1\nHost: good.test\n\n`,
    `GET / HTTP/2.0\r\n${host}\r\n`,
    'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    `GET / HTTP/1.1\r\n${host}X: ${'x'.repeat(100_000)}\r\n\r\n`,
  ];
  for (const shape of shapes) {
    const answer = await send(await lab.connect(good), shape);
    t.regex(answer, /^(HTTP\/1.1 4(00|03|31)|$)/u, JSON.stringify(shape.slice(0, 200)));
  }
  t.is(count, 0);
});

for (const [head, status] of [
  ['HTTP/1.1 099 No', '502 Bad Gateway'],
  ['HTTP/1.1 000 No', '502 Bad Gateway'],
  ['HTTP/1.1 200 OK\r\nTrailer: x\r\nContent-Length: 2', '502 Bad Gateway'],
  ['HTTP/1.1 200 a\u0001b', '200 '],
  ['HTTP/1.1 200 a\u0000b', '200 '],
] as const) {
  test(`a server that answers ${JSON.stringify(head)} harms nobody else`, async (t) => {
    await using lab = await EgressLab.open(NAMES);
    const site = await lab.serve('127.0.0.2', (socket) => {
      socket.on('error', () => undefined);
      socket.once('data', () => socket.end(`${head}\r\n\r\nhi`, 'latin1'));
    });
    lab.setPolicy(ALLOW_GOOD);
    const answer = await send(await lab.connect(site), get('good.test'));
    t.true(answer.startsWith(`HTTP/1.1 ${status}\r\n`), answer);
    const upgrade = `GET / HTTP/1.1\r\nHost: good.test\r\n${UPGRADE}\r\n`;
    const other = await send(await lab.connect(site), upgrade);
    t.regex(other, status.startsWith('200') ? /^HTTP\/1.1 200 / : /^$/u);
  });
}

test('a WebSocket is asked for when the requests before it are answered, also if it is refused', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const answers: (() => void)[] = [];
  const seen: (string | undefined)[] = [];
  const site = await lab.serveHttp('127.0.0.2', (request, response) => {
    seen.push(request.url);
    if (request.url === '/slow') answers.push(() => response.end('slow'));
    else response.end('refused');
  });
  lab.setPolicy(ALLOW_GOOD);
  const socket = await lab.connect(site);
  const host = 'HTTP/1.1\r\nHost: good.test\r\n';
  const answered = send(socket, `GET /slow ${host}\r\nGET / ${host}${UPGRADE}\r\n`);
  await waitFor('the first request', async () => answers.length > 0);
  t.regex(await send(await lab.connect(site), get('good.test')), /refused$/u);
  t.deepEqual(seen, ['/slow', '/']); // The second one is that of the other connection.
  answers[0]?.();
  t.regex(await answered, /^HTTP\/1.1 200 OK[^]*slowHTTP\/1.1 200 OK[^]*refused$/u);
});

test('an answer to a WebSocket that breaks off is not followed by another one', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const site = await lab.serve('127.0.0.2', (socket) => {
    const head = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n';
    socket.once('data', () => {
      socket.write(head);
      setTimeout(() => socket.write('no chunk\r\n'), 50);
    });
  });
  lab.setPolicy(ALLOW_GOOD);
  const line = 'GET / HTTP/1.1\r\nHost: good.test\r\n';
  const answer = await send(await lab.connect(site), `${line}${UPGRADE}\r\n`);
  t.regex(answer, /^HTTP\/1.1 200 OK\r\n/u);
  t.false(answer.includes('could not be reached'), answer);
});

test('a request that Node refuses to send on ends its connection, and harms nobody else', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const site = await lab.serveHttp('127.0.0.2', tell('good'));
  lab.setPolicy(ALLOW_GOOD);
  const trailer = 'GET / HTTP/1.1\r\nHost: good.test\r\nTrailer: x\r\n'; // Only chunked bodies have any.
  for (const more of ['', UPGRADE]) {
    t.is(await send(await lab.connect(site), `${trailer}${more}\r\n`), '');
  }
  t.regex(await send(await lab.connect(site), get('good.test')), /good$/u);
});

test('closed addresses stay closed, whatever a name resolves to', async (t) => {
  await using lab = await EgressLab.open(NAMES, { closed: ['127.0.0.9/32'] });
  const inside = await lab.serveHttp('127.0.0.9', tell('inside'));
  lab.setPolicy({ default: 'allow', allow: ['inside.test'] });
  const named = await send(
    await lab.connect({ ...inside, address: '127.0.0.4' }),
    get('inside.test'),
  );
  t.regex(named, /502[^]*inside.test has no address that may be reached/u);
  t.is(await send(await lab.connect(inside), '\0'), '');
});

test('a ClientHello is judged by its name in however many pieces and records it comes', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const good = await lab.serveHttps('127.0.0.2', 'good.test', tell('good'));
  lab.setPolicy(ALLOW_GOOD);
  const hello = await clientHello('good.test');
  for (const records of [tlsRecord(hello), inRecords(hello, [3, 100])]) {
    const socket = await lab.connect(good);
    for (const byte of records) socket.write(Buffer.from([byte]));
    const [answer] = (await once(socket, 'data')) as [Buffer];
    t.is(answer[0], 0x16);
    socket.destroy();
  }
  const denied = await lab.connect(good);
  denied.write(inRecords(await clientHello('shared.test'), [3, 100]));
  t.is((await readAll(denied)).length, 0);
  t.deepEqual(
    lab.slot.decisions.map(({ name, allowed }) => ({ name, allowed })),
    [
      { name: 'shared.test', allowed: false },
      { name: 'good.test', allowed: true },
    ],
  );
});

/** Names of protocols that make a ClientHello longer than the proxy reads. */
const MANY_PROTOCOLS = Array.from({ length: 75 }, (_, at) => String(at).padStart(230, 'x'));

/** Bytes in which the proxy finds no name, although a server may find one. */
const nameless = async (name: string): Promise<Record<string, Buffer>> => {
  const hello = await clientHello(name);
  const [first, rest] = [hello.subarray(0, 100), hello.subarray(100)];
  const alert = tlsRecord(Buffer.from([1, 0]), 0x15);
  return {
    'a hello with an alert inside': Buffer.concat([tlsRecord(first), alert, tlsRecord(rest)]),
    'a hello after an alert': Buffer.concat([alert, tlsRecord(hello)]),
    'a hello of more than 16 KiB': inRecords(await clientHello(name, MANY_PROTOCOLS), [16_000]),
    'a hello without a name': tlsRecord(await clientHello()),
    'HTTP/2 without TLS': Buffer.from(`PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n${name}`),
    'a request line after many line ends': Buffer.from(`${'\r\n'.repeat(20)}${get(name)}`),
    garbage: Buffer.from('\0\u0001'),
  };
};

for (const port of [443, 80]) {
  test(`nothing without a name passes port ${port} where it could get around a rule`, async (t) => {
    await using lab = await EgressLab.open(NAMES);
    const address = '127.0.0.3';
    const seen: string[] = [];
    await lab.serve(
      address,
      (socket) =>
        socket.on('data', (chunk) => {
          seen.push(chunk.toString('latin1'));
          socket.end('reached');
        }),
      port,
    );
    const headers = { authorization: 'Bearer 0123456789abcdef' };
    const brokered = { target: 'sub.evil.test', transform: { headers } };
    const policies: Record<string, EgressPolicy> = {
      'a denied wildcard': { default: 'allow', deny: ['*.evil.test'] },
      // The address is not the one that the resolver has for the name.
      'a denied name': { default: 'allow', deny: ['cdn.evil.test'] },
      'a denied name beside an address': {
        ...{ default: 'deny', allow: [address], deny: ['cdn.evil.test'] },
      },
      'a denied wildcard beside an address': {
        ...{ default: 'deny', allow: [address], deny: ['*.evil.test'] },
      },
      'a brokered name': { default: 'allow', allow: [brokered] },
    };
    for (const [rules, policy] of Object.entries(policies)) {
      lab.setPolicy(policy);
      for (const [kind, bytes] of Object.entries(await nameless('sub.evil.test'))) {
        const socket = await lab.connect({ address, port });
        socket.write(bytes);
        t.is((await readAll(socket)).length, 0, `${kind} past ${rules}`);
      }
      const decisions = lab.slot.decisions;
      t.true(
        decisions.some(({ rule, allowed }) => rule === 'unnamed' && !allowed),
        rules,
      );
    }
    t.deepEqual(seen, []);
    // An address that a rule allows is reached without a name, but not by what cannot be read.
    lab.setPolicy({ default: 'deny', allow: [address, brokered] });
    const { garbage = Buffer.alloc(0), 'a hello without a name': bare = Buffer.alloc(0) } =
      await nameless('sub.evil.test');
    const refused = await lab.connect({ address, port });
    refused.write(garbage);
    t.is((await readAll(refused)).length, 0);
    (await lab.connect({ address, port })).write(bare);
    await waitFor('the hello', async () => seen.join('').length === bare.length);
  });
}

test('a request is judged by its Host behind empty lines and in whatever case its method is', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const seen: (string | undefined)[] = [];
  const address = '127.0.0.2';
  const site = await lab.serveHttp(address, (request, response) => {
    seen.push(request.headers.host);
    response.end('good');
  });
  // The site is no address of the denied name, and has another name that is not denied.
  lab.setPolicy({ default: 'allow', deny: ['cdn.evil.test'] });
  for (const lines of ['\r\n', '\n', '\r\n\r\n\r\n']) {
    const denied = await send(await lab.connect(site), lines + get('cdn.evil.test'));
    t.regex(denied, /^HTTP\/1.1 403 [^]*the network policy denies cdn.evil.test/u);
    t.regex(await send(await lab.connect(site), lines + get('good.test')), /good$/u);
  }
  const small = get('cdn.evil.test').replace('GET', 'get');
  t.regex(await send(await lab.connect(site), small), /^HTTP\/1.1 400 /u);
  t.deepEqual([...new Set(seen)], ['good.test']);
});

test('where no name is denied, a client may speak any protocol to an address on port 443', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const site = { address: '127.0.0.4', port: 443 };
  await lab.serve(
    site.address,
    (socket) => socket.once('data', (chunk) => socket.end(`got ${chunk.toString()}`)),
    site.port,
  );
  lab.setPolicy({ default: 'allow', allow: ['good.test'] });
  for (const line of ['SSH-2.0-OpenSSH_9.6 x\r\n', 'SSH-2.0-Go\r\n', '\0\u0001']) {
    t.is(await send(await lab.connect(site), line), `got ${line}`);
  }
});

test('on ports of other protocols a denied name and a broker refuse nothing', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const server = await lab.serve('127.0.0.4', (socket) => void socket.end('hello'));
  const headers = { authorization: 'Bearer 0123456789abcdef' };
  const allow = [{ target: 'good.test', transform: { headers } }];
  lab.setPolicy({ default: 'allow', allow, deny: ['*.evil.test', 'cdn.evil.test'] });
  t.is(await send(await lab.connect(server), '\0\u0001'), 'hello');
});

test('a slot has no more connections than its share, and loses them with its rules', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const server = await lab.serve('127.0.0.4', () => undefined);
  lab.setPolicy({ default: 'allow' });
  const sockets = [];
  for (let count = 0; count < 513; count += 1) sockets.push(await lab.connect(server));
  const last = sockets.at(-1);
  t.is(last === undefined ? undefined : (await readAll(last)).length, 0);
  t.is(lab.slot.connections.size, 512);
  lab.proxy.removeSlot('127.0.0.1');
  await Promise.all(sockets.map((socket) => readAll(socket)));
  t.pass();
});

test('both directions of a tunnel end by themselves', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const server = await lab.serve('127.0.0.4', (socket) => {
    const chunks: Buffer[] = [];
    socket.on('data', (chunk: Buffer) => chunks.push(chunk));
    socket.once('end', () => socket.end(`got ${Buffer.concat(chunks).length}`));
  });
  lab.setPolicy({ default: 'allow' });
  const socket = await lab.connect(server);
  socket.end(Buffer.alloc(3_000_000));
  t.is((await readAll(socket)).toString(), 'got 3000000');
});

/** A site that leaves requests for /hang open, and the paths that it was asked for. */
async function serveHanging(lab: EgressLab) {
  const seen: string[] = [];
  const site = await lab.serveHttp('127.0.0.2', (request, response) => {
    seen.push(request.url ?? '');
    if (request.url !== '/hang') response.end('good');
  });
  lab.setPolicy(ALLOW_GOOD);
  return { site, seen };
}

const HANG = 'GET /hang HTTP/1.1\r\nHost: good.test\r\n';

/** Breaks a guest's connection off, and waits until the proxy has noticed. */
async function hangUp(lab: EgressLab, socket: Socket): Promise<void> {
  socket.resetAndDestroy();
  await waitFor('the end of the connection', async () => lab.slot.connections.size === 0);
}

test('a request whose guest hangs up while it is judged is not sent on', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const { site, seen } = await serveHanging(lab);
  const release = lab.holdNames();
  const socket = await lab.connect(site);
  socket.write(`${HANG}\r\n`);
  await waitFor('the request', () =>
    lab.slot.flights.drained(['*'], AbortSignal.timeout(20)).then(
      () => false,
      () => true,
    ),
  );
  await hangUp(lab, socket);
  release();
  t.regex(await send(await lab.connect(site), get('good.test')), /good$/u);
  t.deepEqual(seen, ['/']);
});

test('a request whose guest hangs up is not sent again, although its server was asked before', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const { site, seen } = await serveHanging(lab);
  const socket = await lab.connect(site);
  socket.write('GET /first HTTP/1.1\r\nHost: good.test\r\n\r\n');
  await once(socket, 'data');
  socket.write(`${HANG}\r\n`);
  await waitFor('the second request', async () => seen.length === 2);
  await hangUp(lab, socket);
  t.regex(await send(await lab.connect(site), get('good.test')), /good$/u);
  t.deepEqual(seen, ['/first', '/hang', '/']);
});

test('pausing waits for requests under way to the hosts of the patterns', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  const answers: (() => void)[] = [];
  const good = await lab.serveHttp('127.0.0.2', (_request, response) => {
    answers.push(() => response.end('done'));
  });
  lab.setPolicy(ALLOW_GOOD);
  const socket = await lab.connect(good);
  const answered = send(socket, get('good.test'));
  while (answers.length === 0) await sleep(10);
  const never = new AbortController().signal;
  await lab.slot.flights.drained(['other.test', '*.good.test'], never);
  const drained = lab.slot.flights.drained(['goo*est'], never);
  const before = await Promise.race([drained.then(() => 'drained'), Promise.resolve('waiting')]);
  t.is(before, 'waiting');
  await t.throwsAsync(lab.slot.flights.drained(['*'], AbortSignal.timeout(200)));
  answers[0]?.();
  await drained;
  t.regex(await answered, /done$/u);
});
