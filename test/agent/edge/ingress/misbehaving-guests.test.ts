/*
 * The ingress over sockets, before guests that break connections off or answer oddly, and behind
 * callers that claim to be others.
 */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { Pool } from 'undici';
import { IngressServer } from '../../../../agent/edge/ingress/ingress-server.ts';
import { newAccountId, newHostId, newSandboxId, routeIdOf } from '../../../../shared/ids.ts';
import { createHttpMetrics } from '../../../../shared/http/http-server.ts';
import { createLogger } from '../../../../shared/log.ts';
import { Registry } from '../../../../shared/metrics.ts';
import { GARBAGE_ANSWERS } from '../../../helpers/garbage-answers.ts';
import { ALLOWED, bytesOf, FORBIDDEN, treacherousTexts } from '../../../helpers/header-bytes.ts';

const ID = newSandboxId();
const PORT = 8080;
const ZONE = 'sbx.localhost';
const ANSWER_MS = 300;
const HOST = `${PORT}-${routeIdOf(ID)}.${ZONE}`;
const SWITCHING = 'HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n';
const ASK_UPGRADE = `GET / HTTP/1.1\r\nHost: ${HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n`;
const GET = `GET / HTTP/1.1\r\nHost: ${HOST}\r\n\r\n`;
const POST = `POST / HTTP/1.1\r\nHost: ${HOST}\r\nContent-Length: 4\r\n\r\nbody`;

const connections = {
  ...{ max: 100, perAddressMax: 100, proxies: ['127.0.0.1'] },
  transfers: { bytesPerSecondMin: 1, stalledMs: 60_000, crowdedStalledMs: 60_000 },
};

interface Fixture {
  readonly port: number;
  readonly endUpgraded: (sandboxId?: string) => void;
}

/** An ingress before one port, where `guest` is given each connection once a request has come. */
async function start(
  t: ExecutionContext,
  guest: (socket: Socket, request: string) => void,
  trustedProxies: readonly string[] = [],
): Promise<Fixture> {
  const backend = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.once('data', (request: Buffer) => guest(socket, request.toString('latin1')));
  });
  backend.listen(0, '127.0.0.1');
  await once(backend, 'listening');
  const open = async (): Promise<Socket> => {
    const socket = connect((backend.address() as AddressInfo).port, '127.0.0.1');
    await once(socket, 'connect');
    return socket;
  };
  const pool = new Pool('http://sandbox', {
    connect: (_options, callback) => {
      open().then(
        (socket) => callback(null, socket),
        (error: unknown) => callback(error as Error, null),
      );
    },
  });
  const { server, endUpgraded } = await IngressServer.start({
    settings: {
      ...{ zone: ZONE, host: '127.0.0.1', port: 0, answerMs: ANSWER_MS },
      ...{ connections, trustedProxies },
    },
    tls: undefined,
    find: async () => ({
      ...{ accountId: newAccountId(), sandboxId: ID, hostId: newHostId(), token: undefined },
      ...{ isExposed: true, hasServiceIngress: false, isServicePort: false },
    }),
    open,
    upstream: () => pool,
    waits: () => undefined,
    use: () => () => undefined,
    noteService: async () => undefined,
    answered: () => undefined,
    metrics: createHttpMetrics(new Registry()),
    log: createLogger('test', {}),
  });
  t.teardown(async () => {
    endUpgraded();
    server.close();
    server.closeAllConnections();
    backend.close();
    await pool.destroy();
  });
  return { port: (server.address() as AddressInfo).port, endUpgraded };
}

/** A connection to the ingress, and everything that came over it. */
class Caller {
  readonly socket: Socket;
  text = '';
  readonly #closed: Promise<unknown>;

  constructor(port: number, request: string) {
    this.socket = connect(port, '127.0.0.1');
    this.socket.on('data', (chunk: Buffer) => {
      this.text += chunk.toString('latin1');
    });
    this.socket.on('error', () => undefined);
    this.#closed = new Promise((resolve) => {
      this.socket.once('close', resolve);
    });
    this.socket.write(request);
  }

  /** Resolves with everything once the server has ended the connection. */
  async ended(): Promise<string> {
    await this.#closed;
    return this.text;
  }

  async until(text: string): Promise<void> {
    const ended = this.#closed.then(() => true);
    while (!this.text.includes(text)) {
      if ((await Promise.race([once(this.socket, 'data'), ended])) !== true) continue;
      if (!this.text.includes(text)) throw new Error(`it ended with ${this.text}`);
    }
  }
}

test('a WebSocket that the guest resets is broken off at its caller too', async (t) => {
  const { port } = await start(t, (socket) => {
    socket.write(`${SWITCHING}frame`);
    socket.on('data', () => socket.resetAndDestroy());
  });
  const caller = new Caller(port, ASK_UPGRADE);
  await caller.until('frame');
  caller.socket.write('x');
  t.true((await caller.ended()).endsWith('frame'), 'and nothing is added to its bytes');
});

test('the WebSockets of a sandbox that stops are broken off, and no others', async (t) => {
  const { port, endUpgraded } = await start(t, (socket) => socket.write(`${SWITCHING}frame`));
  const caller = new Caller(port, ASK_UPGRADE);
  await caller.until('frame');
  endUpgraded(newSandboxId());
  const next = new Caller(port, ASK_UPGRADE);
  await next.until('frame');
  t.false(caller.socket.destroyed);
  endUpgraded(ID);
  t.true((await caller.ended()).endsWith('frame'));
  t.true((await next.ended()).endsWith('frame'));
});

test('a refusal of a WebSocket passes whole, with its length', async (t) => {
  const { port } = await start(t, (socket) => {
    socket.write(
      'HTTP/1.1 403 N\u00FCx\r\nX-Why: because\r\nContent-Length: 4\r\n\r\nnono',
      'latin1',
    );
  });
  const text = await new Caller(port, ASK_UPGRADE).ended();
  t.regex(text, /^HTTP\/1\.1 403 N\u00FCx\r\n/u);
  t.regex(text, /\r\nX-Why: because\r\nContent-Length: 4\r\n/u);
  t.true(text.endsWith('\r\n\r\nnono'));
});

const cuts = { ends: 'end', resets: 'resetAndDestroy' } as const;
for (const [does, method] of Object.entries(cuts)) {
  test(`a refusal of a WebSocket that the guest cuts short (${does}) ends short`, async (t) => {
    const { port } = await start(t, (socket) => {
      socket.write('HTTP/1.1 403 No\r\nContent-Length: 100\r\n\r\npart', () => {
        setTimeout(() => socket[method](), 50);
      });
    });
    const text = await new Caller(port, ASK_UPGRADE).ended();
    t.true(text.endsWith('\r\n\r\npart'), text);
    t.regex(text, /Content-Length: 100/u, 'so that the caller can tell');
  });
}

for (const status of ['101', '099', '000']) {
  test(`a status ${status} without a protocol is no answer to an upgrade`, async (t) => {
    const { port } = await start(t, (socket) => socket.write(`HTTP/1.1 ${status} No\r\n\r\nframe`));
    t.regex(await new Caller(port, ASK_UPGRADE).ended(), /^HTTP\/1\.1 502 /u);
  });
}

test('an upgrade that is refused behind a request without an answer ends the connection', async (t) => {
  const { port } = await start(t, (socket, request) => {
    if (request.includes('Upgrade')) socket.write('HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n');
  });
  const text = await new Caller(port, `${GET}${ASK_UPGRADE}`).ended();
  t.notRegex(text, / 403 /u, 'its answer is none to the first request');
});

for (const [name, request] of Object.entries({ GET, POST })) {
  test(`interim answers to ${name} do not prolong the time for an answer`, async (t) => {
    const { port } = await start(t, (socket) => {
      const more = setInterval(() => socket.write('HTTP/1.1 103 Hints\r\n\r\n'), ANSWER_MS / 10);
      socket.once('close', () => clearInterval(more));
    });
    const caller = new Caller(port, request);
    await caller.until('in time');
    t.regex(caller.text, /^HTTP\/1\.1 504 /u);
    caller.socket.destroy();
  });
}

test('a guest sets no cookies for the ports of other sandboxes', async (t) => {
  const cookies = {
    'a=b; Path=/; HttpOnly': 'a=b; Path=/; HttpOnly',
    [`a=b; Domain=${ZONE}; Path=/`]: 'a=b; Path=/',
    'a=b; Path=/; DOMAIN = .LocalHost. ': 'a=b; Path=/',
    [`a=b;domain=${ZONE};domain=x;Secure`]: 'a=b;domain=x;Secure',
    'a=b; Domain=%73bx.localhost': 'a=b',
    'a=b; Domain="sbx.localhost"': 'a=b',
    [`Domain=${ZONE}`]: `Domain=${ZONE}`,
    [`a=b; Domain=${HOST}`]: `a=b; Domain=${HOST}`,
    'a=b; Domain=app.example': 'a=b; Domain=app.example',
    'a=b; Domain=host': 'a=b; Domain=host',
  };
  const lines = Object.keys(cookies).map((cookie) => `Set-Cookie: ${cookie}\r\n`);
  for (const [request, head] of [
    [GET, 'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n'],
    [ASK_UPGRADE, 'HTTP/1.1 403 No\r\nContent-Length: 0\r\n'],
    [ASK_UPGRADE, SWITCHING.slice(0, -2)],
  ] as const) {
    const { port } = await start(t, (socket) => socket.write(`${head}${lines.join('')}\r\n`));
    const caller = new Caller(port, request);
    await caller.until('\r\n\r\n');
    const set = [...caller.text.matchAll(/^Set-Cookie: (?<cookie>.*)\r$/gmu)];
    t.deepEqual(
      set.map(({ groups }) => groups?.['cookie']),
      Object.values(cookies),
    );
    caller.socket.destroy();
  }
});

const VALUES = [ALLOWED, bytesOf('报告 é.txt'), ...treacherousTexts(2_000).map(bytesOf)];
const headed = (value: string): string => `content-disposition: ${value}\r\nX-Own: ${value}\r\n`;

/** Answers of a guest whose header values are the interesting part. */
const answers = {
  'an answer': [GET, (own: string) => `HTTP/1.1 200 OK\r\nContent-Length: 4\r\n${own}\r\nbody`],
  'an answer without a body': [GET, (own: string) => `HTTP/1.1 304 No\r\n${own}\r\n`],
  trailers: [
    GET,
    (own: string) =>
      `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n${own}\r\n`,
  ],
  'the head of a WebSocket': [
    ASK_UPGRADE,
    (own: string) => `${SWITCHING.slice(0, -2)}${own}\r\nbody`,
  ],
  'a refused WebSocket': [
    ASK_UPGRADE,
    (own: string) => `HTTP/1.1 403 No\r\nContent-Length: 4\r\n${own}\r\nbody`,
  ],
} as const satisfies Record<string, readonly [string, (own: string) => string]>;

for (const [name, [asked, answerWith]] of Object.entries(answers)) {
  test(`header values of a guest pass byte for byte: ${name}`, async (t) => {
    let own = '';
    const { port } = await start(t, (socket) => {
      socket.end(Buffer.from(answerWith(own), 'latin1'));
    });
    for (const value of VALUES) {
      own = headed(value);
      const caller = new Caller(port, asked);
      await caller.until(`X-Own: ${value}\r\n`);
      t.true(caller.text.includes(own), caller.text);
      t.is(caller.text.match(/HTTP\/1\.1 /gu)?.length, 1);
      caller.socket.destroy();
    }
  });

  test(`control characters in header values of a guest do not pass: ${name}`, async (t) => {
    let own = '';
    const { port } = await start(t, (socket) => {
      socket.end(Buffer.from(answerWith(own), 'latin1'));
    });
    for (const byte of FORBIDDEN.filter((each) => each !== '\r' && each !== '\n')) {
      own = `X-Own: a${byte}b\r\n`;
      const caller = new Caller(port, asked);
      caller.socket.end();
      t.false((await caller.ended()).includes(byte), JSON.stringify(byte));
    }
  });

  test(`header values of a caller reach the guest byte for byte: ${name}`, async (t) => {
    let seen = '';
    const { port } = await start(t, (socket, request) => {
      seen = request;
      socket.end(answerWith(''));
    });
    for (const value of VALUES) {
      const caller = new Caller(port, '');
      caller.socket.write(`${asked.slice(0, -2)}${headed(value)}\r\n`, 'latin1');
      await caller.until('\r\n\r\n');
      t.true(seen.includes(headed(value)), seen);
      caller.socket.destroy();
    }
  });
}

for (const [name, pieces] of Object.entries(GARBAGE_ANSWERS)) {
  test(`the ingress outlives a guest's answer: ${name}`, async (t) => {
    const { port } = await start(t, (socket) => {
      socket.write(pieces.join(''), 'latin1');
      setImmediate(() => socket.end());
    });
    for (const request of [GET, POST, ASK_UPGRADE]) {
      const caller = new Caller(port, request);
      await caller.until('HTTP/1.1 ').catch(() => undefined);
      t.regex(caller.text, /^(?:$|HTTP\/1\.1 (?:101|200|204|502|504) )/u);
      caller.socket.destroy();
    }
  });
}

test('a reason phrase that HTTP does not allow is replaced', async (t) => {
  const { port } = await start(t, (socket) => {
    socket.write('HTTP/1.1 404 Não \u0001\r\nContent-Length: 2\r\n\r\nok');
  });
  const caller = new Caller(port, GET);
  await caller.until('\r\n\r\nok');
  t.regex(caller.text, /^HTTP\/1\.1 404 Not Found\r\n/u);
  caller.socket.destroy();
});

/** Headers in which a caller would claim to be another, or to ask for something else. */
const CLAIMS = [
  ...['X-Forwarded-Host', 'X-Forwarded-Port', 'X-Forwarded-Prefix', 'X-Forwarded-By', 'Forwarded'],
  ...['X-Client-IP', 'True-Client-IP', 'X-Real-IP', 'CF-Connecting-IP', 'Fastly-Client-IP'],
  ...['X-Cluster-Client-IP', 'X-Original-URL', 'X-Rewrite-URL', 'X-Original-Host', 'X-Remote-Addr'],
  ...['CloudFront-Viewer-Address', 'X-ARR-ClientIP', 'X-Sucuri-ClientIP', 'CDN-Real-IP'],
  ...['X-Envoy-Original-Path', 'X-Service-Token', 'X-Archil-Token', 'Proxy-Authorization'],
];

for (const asked of [GET, ASK_UPGRADE]) {
  for (const trusted of [[], ['127.0.0.1']]) {
    const what = asked === GET ? 'a request' : 'an upgrade';
    const who = trusted.length === 0 ? 'a caller' : 'a trusted proxy';
    test(`no claim of ${who} passes with ${what}, however it is spelled`, async (t) => {
      let seen = '';
      const { port } = await start(
        t,
        (socket, request) => {
          seen = request;
          socket.end('HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n');
        },
        trusted,
      );
      const spellings = CLAIMS.flatMap((name) => [
        ...[name, name.toUpperCase(), name.replaceAll('-', '_')],
        ...[name.replace('-', '_').toLowerCase(), name.replaceAll('-', '.')],
        name.replace('-', '~').toUpperCase(),
      ]);
      const unread = ['X_Forwarded_For', 'x-forwarded_for', 'X_FORWARDED_PROTO'];
      unread.push('X.Forwarded.For', 'x!forwarded!proto');
      const lines = [...spellings, ...unread].map((name) => `${name}: claimed\r\n`);
      const others = 'X_Own: own\r\nVia: 1.1 own\r\nX-Request-Id: own\r\n';
      const caller = new Caller(port, `${asked.slice(0, -2)}${lines.join('')}${others}\r\n`);
      await caller.until('\r\n\r\n');
      t.notRegex(seen, /claimed/u);
      t.true(seen.includes(others), seen);
      const told = ['For: 127.0.0.1', 'Proto: http', `Host: ${HOST}`];
      t.deepEqual(
        seen.match(/^x.forwarded.*$/gimu),
        told.map((each) => `X-Forwarded-${each}`),
      );
      caller.socket.destroy();
    });
  }
}

for (const trusted of [[], ['127.0.0.1']]) {
  const whose = trusted.length === 0 ? 'one of PROXY_ADDRESSES alone' : 'a trusted proxy';
  test(`a guest is told of its caller what ${whose} may say`, async (t) => {
    const { port } = await start(
      t,
      (socket, request) => {
        const heads = request.match(/^x-forwarded.*$/gimu) ?? [];
        const body = heads.join('|').replaceAll('\r', '');
        socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
      },
      trusted,
    );
    const said = ['For: 192.0.2.1', 'Proto: https', 'Host: other.test'];
    const claims = said.map((each) => `X-Forwarded-${each}\r\n`).join('');
    const caller = new Caller(port, `${GET.slice(0, -2)}${claims}\r\n`);
    await caller.until('X-Forwarded-Host');
    const [source, scheme] =
      trusted.length === 0 ? ['127.0.0.1', 'http'] : ['192.0.2.1, 127.0.0.1', 'https'];
    const told = [`For: ${source}`, `Proto: ${scheme}`, `Host: ${HOST}`];
    t.is(caller.text.split('\r\n\r\n')[1], told.map((each) => `X-Forwarded-${each}`).join('|'));
    caller.socket.destroy();
  });
}
