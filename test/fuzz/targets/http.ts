/*
 * The HTTP parsers of all ports of a live system. Whatever bytes come on a connection: what goes
 * back is a sequence of whole answers, none tells of a fault of ours, and the next caller is
 * served.
 */
import assert from 'node:assert';
import { connect } from 'node:net';
import { Stack } from '../../helpers/stack.ts';
import type { Target } from '../target.ts';

const ports = ['CONTROL_PORT', 'CONTROL_INTERNAL_PORT', 'AGENT_PORT', 'AGENT_ADMIN_PORT'] as const;
const HEAD_END = '\r\n\r\n';
const ANSWER_MS_MAX = 10_000;
/** How long to wait for a server that expects more of a request. */
const QUIET_MS = 50;

let stack: Stack | undefined;

/** The bytes that come back until the server is done or waits for more. */
function exchange(port: number, input: Buffer): Promise<Buffer> {
  return new Promise((resolve) => {
    const pieces: Buffer[] = [];
    const socket = connect(port, '127.0.0.1');
    socket.on('data', (piece: Buffer) => pieces.push(piece));
    socket.on('error', () => undefined);
    socket.once('close', () => resolve(Buffer.concat(pieces)));
    socket.setTimeout(QUIET_MS, () => socket.destroy());
    socket.write(input);
  });
}

/** The statuses of all complete answers. @throws Error when there is anything between them */
function readStatuses(bytes: Buffer): number[] {
  const statuses: number[] = [];
  for (let rest = bytes; rest.length > 0;) {
    const end = rest.indexOf(HEAD_END);
    if (end === -1) break; // Incomplete because the connection was abandoned.
    const head = rest.toString('latin1', 0, end);
    const status = /^HTTP\/1\.1 (\d{3}) [^\r\n]*(?:\r\n[!-9;-~]+: ?[^\r\n]*)*$/u.exec(head)?.[1];
    assert(status !== undefined, `not the head of an answer: ${JSON.stringify(head)}`);
    statuses.push(Number(status));
    const from = end + HEAD_END.length;
    const length = /\r\ncontent-length: (\d+)/iu.exec(head)?.[1];
    if (length === undefined && !/^HTTP\/1\.1 (?:1\d\d|204|304)/u.test(head)) break;
    // An answer to HEAD has no body. None of our bodies begins like a head.
    const isBodyless = rest.toString('latin1', from, from + 9) === 'HTTP/1.1 ';
    rest = rest.subarray(from + (isBodyless ? 0 : Number(length ?? 0)));
  }
  return statuses;
}

async function assertServes(port: number): Promise<void> {
  const signal = AbortSignal.timeout(ANSWER_MS_MAX);
  const reply = await fetch(`http://127.0.0.1:${port}/fuzz-nothing-is-here`, { signal });
  await reply.arrayBuffer();
  assert(reply.status >= 400 && reply.status < 500, `the next caller got ${reply.status}`);
}

const DISK = 'dsk-0123456789abcdef';

const http: Target = {
  name: 'http',
  seeds: [
    'GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n',
    `GET /${DISK}/key HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\nAuthorization: x\r\n\r\n`,
    `PUT /${DISK}/key?append=true HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello`,
    'POST /api/disks HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{"name":"a"}',
    'POST /api/exec HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n',
    'GET /agent-link HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n',
    `GET /${DISK}/key?response-content-disposition=%C4%8D HTTP/1.1\r\nHost: a\r\nX-Own: č\r\nAuthorization: x\r\n\r\n`,
    'GET /data/file?key=a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x.y\r\n\r\n',
    'GET /api/shared/eyJ9.x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n',
  ],
  words: [
    ...[
      '\r\n',
      HEAD_END,
      'Content-Length: 5\r\n',
      'Content-Length: -1\r\n',
      'Content-Length: +5\r\n',
    ],
    ...[
      'Transfer-Encoding: chunked\r\n',
      'Transfer-Encoding: xchunked\r\n',
      'transfer-encoding:\tchunked\r\n',
    ],
    ...[
      'Connection: close\r\n',
      'Connection: keep-alive\r\n',
      'Upgrade: h2c\r\n',
      'Expect: 100-continue\r\n',
    ],
    ...[
      'Host: b\r\n',
      'Trailer: x\r\n',
      'TE: trailers\r\n',
      ' folded\r\n',
      '0\r\n\r\n',
      '5;a=b\r\nhello\r\n',
    ],
    ...[
      'DELETE',
      'OPTIONS *',
      'CONNECT a:1',
      'HTTP/1.0',
      'HTTP/2.0',
      '?list-type=2',
      '?delete=',
      '%2e%2e/',
    ],
    ...[
      'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
      'Authorization: ',
      'x-request-id: ',
      'Idempotency-Key: a\r\n',
      'Content-Disposition: č\r\n',
      'X-Request-Id: ÿ\r\n',
    ],
  ],
  executions: 100,
  open: async () => {
    const opened = await Stack.start({ LOG_LEVEL: 'warn' });
    stack = opened;
    return { [Symbol.asyncDispose]: () => opened.stop() };
  },
  async run(input) {
    assert(stack !== undefined);
    const { environment, agent, control } = stack;
    const tries = ports.map(async (name) => {
      const port = Number(environment[name]);
      const statuses = readStatuses(await exchange(port, input));
      const faults = statuses.filter((status) => status === 500 || status === 502);
      assert.deepStrictEqual(faults, [], `${name} answered with a fault`);
      await assertServes(port);
    });
    await Promise.all(tries);
    assert(agent.isRunning && control.isRunning, 'a part of the system has ended');
  },
};

export const httpTargets: readonly Target[] = [http];
