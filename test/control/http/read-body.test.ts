/* Bodies of requests, by callers who send more than they may, or never end. */
import test from 'ava';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { gzipSync } from 'node:zlib';
import { BodyShares } from '../../../control/http/body-shares.ts';
import { readBody } from '../../../control/http/read-body.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { HTTP_LIMITS } from '../../../control/http/limits.ts';
import { KiB, MiB } from '../../../shared/units.ts';
import { waitFor } from '../../helpers/wait.ts';

const BYTES_MAX = 64 * KiB;

/** Answers each request with its body, or with the code of the error; keeps both in `outcomes`. */
async function openServer({ mayBeCompressed = true } = {}) {
  const bodies = new BodyShares();
  const outcomes: string[] = [];
  let begun = 0;
  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    begun += 1;
    using held = bodies.begin('acct-1');
    const outcome = await readBody(request, { bytesMax: BYTES_MAX, mayBeCompressed, held }).catch(
      (error: unknown) => (error instanceof AppError ? error.code : toError(error).message),
    );
    outcomes.push(outcome);
    response.end(outcome);
  };
  const server = createServer((request, response) => {
    handle(request, response).catch(() => response.destroy());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    outcomes,
    begun: () => begun,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

const chunk = (bytes: Buffer): Buffer =>
  Buffer.concat([Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from('\r\n')]);

/** Begins a request whose body comes in chunks, and leaves it open. */
async function begin(port: number, headers: string, pieces: readonly Buffer[]): Promise<Socket> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => undefined);
  await once(socket, 'connect');
  socket.write(`POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n${headers}\r\n`);
  for (const piece of pieces) socket.write(chunk(piece));
  return socket;
}

/** All but the end of a compressed body. */
const unended = (text: string): Buffer => gzipSync(text).subarray(0, -8);

const ZIPPED = 'content-encoding: gzip\r\n';

test('a body in single bytes is read whole, without a byte order mark', async (t) => {
  await using server = await openServer();
  const text = `{"name":"${'grüße 😀'.repeat(50)}"}`;
  const bytes = [...Buffer.from(`\uFEFF${text}`)].map((byte) => Buffer.from([byte]));
  const socket = await begin(server.port, '', bytes);
  socket.write('0\r\n\r\n');
  await waitFor('the body', () => Promise.resolve(server.outcomes.length > 0));
  t.deepEqual(server.outcomes, [text]);
  socket.destroy();
});

test('a compressed body is refused at its bound, though its end never comes', async (t) => {
  await using server = await openServer();
  const header = gzipSync('').subarray(0, 10);
  const emptyBlocks = Buffer.concat(
    Array.from({ length: BYTES_MAX / 4 }, () => Buffer.from([0, 0, 0, 0xff, 0xff])),
  );
  for (const pieces of [[unended(' '.repeat(MiB))], [header, emptyBlocks]]) {
    const before = server.outcomes.length;
    const socket = await begin(server.port, ZIPPED, pieces);
    await waitFor('the refusal', () => Promise.resolve(server.outcomes.length > before));
    t.is(server.outcomes.at(-1), 'body_too_large');
    const [answer] = (await once(socket, 'data')) as [Buffer];
    t.regex(answer.toString(), /body_too_large/u);
    socket.destroy();
  }
});

test('a compressed body that breaks off ends the wait for it', async (t) => {
  await using server = await openServer();
  const socket = await begin(server.port, ZIPPED, [unended(' '.repeat(KiB))]);
  await waitFor('the request', () => Promise.resolve(server.begun() > 0));
  socket.destroy();
  await waitFor('its end', () => Promise.resolve(server.outcomes.length > 0));
  t.deepEqual(server.outcomes, ['bad_request']);
});

test('a compressed body is refused where none may come', async (t) => {
  await using server = await openServer({ mayBeCompressed: false });
  const socket = await begin(server.port, ZIPPED, [unended('{}')]);
  await waitFor('the refusal', () => Promise.resolve(server.outcomes.length > 0));
  t.deepEqual(server.outcomes, ['bad_request']);
  socket.destroy();
});

test('large bodies of one account leave memory for those of the next', (t) => {
  const { bodyUncountedBytesMax, bodyPieceBytes } = HTTP_LIMITS;
  const bytesOf = (pieces: number): number => bodyUncountedBytesMax + pieces * bodyPieceBytes;
  const bodies = new BodyShares(8);
  using large = bodies.begin('acct-1');
  large.growTo(bytesOf(4));
  t.throws(() => large.growTo(bytesOf(5)), { instanceOf: AppError, code: 'rate_limited' });
  using small = bodies.begin('acct-1');
  t.notThrows(() => small.growTo(bodyUncountedBytesMax));
  using other = bodies.begin('acct-2');
  t.notThrows(() => other.growTo(bytesOf(2)));
  large[Symbol.dispose]();
  t.notThrows(() => small.growTo(bytesOf(3)));
});

test('bodies are refused for all once they take all memory there is for them', (t) => {
  const bodies = new BodyShares(1);
  const bytes = HTTP_LIMITS.bodyUncountedBytesMax + 1;
  using first = bodies.begin('acct-1');
  first.growTo(bytes);
  using second = bodies.begin('acct-2');
  t.throws(() => second.growTo(bytes), { instanceOf: AppError, code: 'unavailable' });
});
