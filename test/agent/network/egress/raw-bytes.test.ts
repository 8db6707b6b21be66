/* The bytes of heads that pass the egress proxy, and servers whose answers are no HTTP. */
import type { RequestListener } from 'node:http';
import type { Socket } from 'node:net';
import test from 'ava';
import { EgressLab, readAll } from '../../../helpers/egress-lab.ts';
import { GARBAGE_ANSWERS, serveGarbage } from '../../../helpers/garbage-answers.ts';
import { ALLOWED, bytesOf, FORBIDDEN, treacherousTexts } from '../../../helpers/header-bytes.ts';

const NAMES = { 'api.test': '127.0.0.2', 'other.test': '127.0.0.3' };
const POLICY = {
  default: 'deny',
  allow: [
    { target: 'api.test', transform: { headers: { 'X-Org': 'org-0123456789' } } },
    'other.test',
  ],
} as const;

const VALUES = [ALLOWED, bytesOf('报告 é.txt'), ...treacherousTexts(2_000).map(bytesOf)];
const headed = (value: string): string => `content-disposition: ${value}\r\nX-Own: ${value}\r\n`;
const CLOSE = 'Connection: close\r\n';
const OK = 'HTTP/1.1 200 OK\r\n';
const SWITCHING = 'HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n';

/** Requests of a guest, and answers of a server, around headers of their own. */
const exchanges = {
  'a body of known length': {
    asked: (own: string) =>
      `POST / HTTP/1.1\r\nHost: HOST\r\n${CLOSE}Content-Length: 4\r\n${own}\r\nbody`,
    answered: (own: string) => `${OK}Content-Length: 4\r\n${own}\r\nbody`,
  },
  'a body that is waited for': {
    asked: (own: string) =>
      `PUT / HTTP/1.1\r\nHost: HOST\r\n${CLOSE}Expect: 100-continue\r\nContent-Length: 4\r\n${own}\r\nbody`,
    answered: (own: string) =>
      `${OK}Transfer-Encoding: chunked\r\n${own}\r\n4\r\nbody\r\n0\r\n\r\n`,
  },
  'no body': {
    asked: (own: string) => `HEAD / HTTP/1.1\r\nHost: HOST\r\n${CLOSE}${own}\r\n`,
    answered: (own: string) => `${OK}Content-Length: 4\r\n${own}\r\n`,
  },
  trailers: {
    asked: (own: string) => `GET / HTTP/1.1\r\nHost: HOST\r\n${CLOSE}${own}\r\n`,
    answered: (own: string) =>
      `${OK}Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n${own}\r\n`,
  },
  'a WebSocket': {
    asked: (own: string) =>
      `GET / HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n${own}\r\n`,
    answered: (own: string) => `${SWITCHING}${own}\r\nbody`,
  },
  'a refused WebSocket': {
    asked: (own: string) =>
      `GET / HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n${own}\r\n`,
    answered: (own: string) => `HTTP/1.1 403 No\r\nContent-Length: 4\r\n${own}\r\nbody`,
  },
};

/** Sends a request as the guest, whose headers have one character a byte. @returns the answer */
async function ask(socket: Socket, request: string): Promise<string> {
  socket.write(request, 'latin1');
  return (await readAll(socket)).toString('latin1');
}

for (const [name, { asked, answered }] of Object.entries(exchanges)) {
  test(`header values pass byte for byte: ${name}`, async (t) => {
    await using lab = await EgressLab.open(NAMES);
    let own = '';
    let seen: string[] = [];
    const answer: RequestListener = (request) => {
      seen = request.rawHeaders;
      request.socket.end(answered(own), 'latin1');
    };
    const plain = await lab.serveHttp('127.0.0.3', answer);
    const secure = await lab.serveHttps('127.0.0.2', 'api.test', answer);
    for (const site of [plain, secure])
      lab.onUpgrade(site, (request) => answer(request, null as never));
    lab.setPolicy(POLICY);
    for (const value of VALUES) {
      own = headed(value);
      for (const [host, connect] of [
        ['other.test', () => lab.connect(plain)],
        ['api.test', () => lab.connectTls(secure, 'api.test')],
      ] as const) {
        const text = await ask(await connect(), asked(own).replace('HOST', host));
        t.true(text.includes(own), text);
        const finals = text.match(/HTTP\/1\.1 (?!100 )/gu);
        t.is(finals?.length, 1, text);
        for (const each of ['content-disposition', 'X-Own']) {
          t.is(seen[seen.indexOf(each) + 1], value);
        }
      }
    }
  });
}

test('a request without a body is sent on without one, whatever its method', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  let seen: string[] = [];
  const site = await lab.serveHttp('127.0.0.3', (request, response) => {
    seen = request.rawHeaders;
    response.end();
  });
  lab.setPolicy(POLICY);
  for (const [method, announced] of [
    ['GET', []],
    ['POST', ['Content-Length', '0']],
    ['PROPFIND', ['Content-Length', '0']],
  ] as const) {
    await ask(await lab.connect(site), `${method} / HTTP/1.1\r\nHost: other.test\r\n${CLOSE}\r\n`);
    t.deepEqual(seen.slice(2, -2), announced, method);
  }
});

test('control characters in header values do not pass', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  let answered = '';
  const asked: string[] = [];
  const site = await lab.serve('127.0.0.3', (socket) => {
    socket.once('data', (request: Buffer) => {
      asked.push(request.toString('latin1'));
      socket.end(answered, 'latin1');
    });
  });
  lab.setPolicy(POLICY);
  for (const byte of FORBIDDEN.filter((each) => each !== '\r' && each !== '\n')) {
    const own = `X-Own: a${byte}b\r\n`;
    answered = `${OK}${own}Content-Length: 0\r\n\r\n`;
    const request = 'GET / HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n';
    t.regex(await ask(await lab.connect(site), `${request}\r\n`), /^HTTP\/1\.1 502 /u);
    asked.length = 0;
    t.regex(await ask(await lab.connect(site), `${request}${own}\r\n`), /^HTTP\/1\.1 400 /u);
    t.deepEqual(asked, []);
  }
});

test('the proxy outlives every answer', async (t) => {
  await using lab = await EgressLab.open(NAMES);
  lab.setPolicy(POLICY);
  const upgrade = 'Connection: Upgrade\r\nUpgrade: websocket\r\n';
  for (const pieces of Object.values(GARBAGE_ANSWERS)) {
    using server = await serveGarbage(pieces, { port: 0, host: '127.0.0.3' });
    for (const own of [CLOSE, upgrade]) {
      const socket = await lab.connect({ address: '127.0.0.3', port: server.port });
      const text = await ask(socket, `GET / HTTP/1.1\r\nHost: other.test\r\n${own}\r\n`);
      t.regex(text, /^(?:$|HTTP\/1\.1 (?:101|200|204|502) )/u);
    }
  }
});
