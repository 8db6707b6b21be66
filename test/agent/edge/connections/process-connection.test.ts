/*
 * Process connections (docs/process-connections.md), most of them of version 2, from the WebSocket
 * to a process of a real guest agent: what repeated, crossing, stalled and hasty clients do to its
 * input and output.
 */
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import type { AddressInfo, Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import anyTest, { type TestFn } from 'ava';
import { WebSocketServer } from 'ws';
import { ProcessConnection } from '../../../../agent/edge/connections/process-connection.ts';
import { EDGE_LIMITS } from '../../../../agent/edge/limits.ts';
import { createLogger } from '../../../../shared/log.ts';
import { KiB, MiB } from '../../../../shared/units.ts';
import { type GuestProcesses, startProcesses } from '../../../helpers/guest-processes.ts';
import { TestConnection } from '../../../helpers/test-connection.ts';
import { waitFor } from '../../../helpers/wait.ts';

interface Context {
  readonly fixture: GuestProcesses;
  readonly server: WebSocketServer;
  /** In the order of their connections. */
  readonly sessions: ProcessConnection[];
  /** The server's ends of the connections, in their order. */
  readonly serverSockets: Socket[];
}
const test = anyTest.serial as TestFn<Context>;

/** How long the server waits for the end of a closing handshake. */
const CLOSE_MS = 200;

test.before(async (t) => {
  const fixture = await startProcesses([], 20);
  const server = new WebSocketServer({
    ...{ port: 0, host: '127.0.0.1', perMessageDeflate: false, closeTimeout: CLOSE_MS },
  });
  await once(server, 'listening');
  const sessions: ProcessConnection[] = [];
  const serverSockets: Socket[] = [];
  const connect = async (): Promise<GuestProcesses['processes']> => fixture.processes;
  server.on('connection', (socket, request) => {
    serverSockets.push(request.socket);
    const options = {
      sandboxId: 'sandbox',
      endsAt: undefined,
      connect,
      log: createLogger('test', {}),
    };
    sessions.push(new ProcessConnection(socket, options));
  });
  Object.assign(t.context, { fixture, server, sessions, serverSockets });
});

test.after.always(async (t) => {
  const { server, fixture } = t.context;
  for (const socket of server.clients) socket.terminate();
  server.close();
  await fixture[Symbol.asyncDispose]();
});

async function connectTo({ server }: Context): Promise<TestConnection> {
  const { port } = server.address() as AddressInfo;
  const session = new TestConnection(`ws://127.0.0.1:${port}`);
  return session.until(() => session.isOpen);
}

/** A connection with its first message said; of version 2 unless that says otherwise. */
async function open(context: Context, first: object): Promise<TestConnection> {
  const session = await connectTo(context);
  session.say({ version: 2, ...first });
  await session.until(() => session.events.length > 0);
  return session;
}

function frameAt(offset: number, bytes: string | Buffer): Buffer {
  const head = Buffer.alloc(8);
  head.writeBigUInt64BE(BigInt(offset));
  return Buffer.concat([head, Buffer.from(bytes)]);
}

/** Where the server last said that input goes on. */
const inputEnd = ({ events }: TestConnection): number | undefined =>
  events.findLast(({ type }) => type === 'input')?.end;

test('input of another client at the same place is refused, and none is lost or doubled', async (t) => {
  const process = randomUUID();
  const start = { type: 'start', process_id: process, command: 'cat' };
  const one = await open(t.context, { ...start, client_id: 'one' });
  one.write(frameAt(0, 'abc'));
  await one.until(() => one.text === 'abc');

  const attach = { type: 'attach', process_id: process };
  const other = await open(t.context, { ...attach, client_id: 'other' });
  other.write(frameAt(0, 'xyz'));
  await other.end();
  t.is(other.error, 'input_conflict');

  // The state after a broken connection: two of these bytes are there.
  one.write(frameAt(1, 'bcd'));
  await one.until(() => one.text === 'abcd');
  one.write(frameAt(9, 'gap'));
  await one.end();
  t.is(one.error, 'input_conflict');

  const next = await open(t.context, { ...attach, client_id: 'other', offset: 4 });
  await next.until(() => inputEnd(next) === 4);
  next.write(frameAt(4, 'efg'));
  next.say({ type: 'close_stdin' });
  await next.end();
  t.is(next.text, 'efg');
  t.like(next.exit, { status: 'completed', exit_code: 0, cursor: 7 });
});

test('a start that is repeated finds the process that the first one began', async (t) => {
  const process = randomUUID();
  const command = `echo begun >>/run/${process}; echo ready; cat; cat /run/${process}`;
  const start = { type: 'start', process_id: process, client_id: 'one', command };
  const first = await open(t.context, start);
  first.write(frameAt(0, 'a'));
  await first.until(() => first.text === 'ready\na');
  first.drop();

  const [again, same] = await Promise.all([open(t.context, start), open(t.context, start)]);
  t.deepEqual([again.processId, same.processId], [process, process]);
  await again.until(() => inputEnd(again) === 1);
  again.write(frameAt(0, 'ab'));
  again.say({ type: 'close_stdin' });
  await Promise.all([again.end(), same.end()]);
  t.is(again.text, 'ready\nabbegun\n');
  t.is(same.text, again.text);
  const late = await open(t.context, start);
  await late.end();
  t.is(late.text, again.text, 'also when it has ended');
});

test('output waits at the window of a client that reads nothing, which is dropped in the end', async (t) => {
  const { sessions } = t.context;
  const window = 64 * KiB;
  const process = randomUUID();
  const command = 'seq 200000; echo end >&2';
  const quiet = await open(t.context, { type: 'start', command: 'sleep 1000' });
  const stalled = await open(t.context, { type: 'start', process_id: process, command, window });
  await stalled.until(() => stalled.cursor > window); // More than the client may be sent.
  t.true(stalled.cursor <= window + 128 * KiB, `${stalled.cursor}`);
  t.is(stalled.exit, undefined);

  const passed = performance.now.bind(performance);
  try {
    performance.now = () => passed() + EDGE_LIMITS.connectionStallMsMax + 1;
    for (const session of sessions) session.dropIfOver();
  } finally {
    performance.now = passed;
  }
  await stalled.end();
  t.is(stalled.closed?.code, 1006);
  t.true(quiet.isOpen, 'one that has nothing to read is left alone');

  // Its window counts from where it goes on; each word of it lets the process write on.
  const offset = stalled.cursor;
  const back = await open(t.context, { type: 'attach', process_id: process, offset, window });
  const sayRead = (): void => {
    if (back.isOpen) back.say({ type: 'read', offset: back.cursor });
  };
  back.on('change', sayRead);
  sayRead(); // A whole window may have come before anybody listened.
  await back.end();
  t.is(back.frames[0]?.offset, offset);
  t.like(back.exit, { status: 'completed', cursor: 1_288_899 });
  t.is(back.cursor, 1_288_899);
  quiet.drop();
});

test('a client that sends far ahead of what the process takes is refused', async (t) => {
  const session = await open(t.context, { type: 'start', command: 'sleep 1000' });
  const half = Buffer.alloc(EDGE_LIMITS.inputWindowBytes / 2);
  session.write(frameAt(0, half));
  session.write(frameAt(half.length, half));
  session.write(frameAt(2 * half.length, half));
  await session.end();
  t.is(session.error, 'invalid_request');
  t.is(session.closed?.code, 1008);
});

test('a client that is slower than the closing handshake still hears of the end', async (t) => {
  const session = await open(t.context, { type: 'start', command: 'cat; exit 7' });
  const serverSocket = t.context.serverSockets.at(-1);
  serverSocket?.cork(); // Nothing leaves the host, as while the client's buffers are full.
  session.write(frameAt(0, 'the last words'));
  session.say({ type: 'close_stdin' });
  await sleep(5 * CLOSE_MS);
  serverSocket?.uncork();
  await session.end();
  t.is(session.text, 'the last words');
  t.like(session.exit, { status: 'failed', exit_code: 7 });
  t.is(session.closed?.code, 1000);
});

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

/** Bytes that are in use once all that is not is collected. */
function usedBytes(): number {
  collectGarbage();
  return process.memoryUsage().heapUsed;
}

const FRAMES = 200_000;

test('input in very many frames takes no more memory than its bytes', async (t) => {
  const session = await open(t.context, {
    ...{
      type: 'start',
      command: 'mkfifo /run/go; echo ready; read go </run/go; wc -c',
      client_id: 'one',
    },
    process_id: randomUUID(),
  });
  await session.until(() => session.text === 'ready\n');
  const filled = 64 * KiB; // So much the guest takes at once.
  session.write(frameAt(0, Buffer.alloc(2 * filled)));
  const before = usedBytes();
  for (let sent = 0; sent < FRAMES; sent += 1) {
    session.write(frameAt(2 * filled + sent, 'x'));
    if (sent % 1000 === 0) await once(session.socket, 'pong', { signal: pinged(session) });
  }
  for (let sent = 0; sent < 1000; sent += 1) session.say({ type: 'close_stdin' });
  await once(session.socket, 'pong', { signal: pinged(session) });
  const grownBytes = usedBytes() - before;
  t.true(grownBytes < 100 * FRAMES, `${grownBytes} bytes for ${FRAMES} frames`);
  const other = await open(t.context, { type: 'start', command: 'echo go >/run/go' });
  await other.end();
  await session.end();
  t.is(session.text, `ready\n${2 * filled + FRAMES}\n`);
});

/** Makes all frames that the client sends meanwhile arrive in one piece. */
function inOnePiece({ rawSocket }: TestConnection, send: () => void): void {
  rawSocket?.cork();
  send();
  rawSocket?.uncork();
}

for (const isStarted of [true, false]) {
  const when = isStarted ? 'input' : 'the first message and input';
  test(`a client that closes right behind ${when} has sent all of it, and its end`, async (t) => {
    const process = randomUUID();
    const start = { version: 1, type: 'start', process_id: process, command: 'cat' };
    const hasty = isStarted ? await open(t.context, start) : await connectTo(t.context);
    inOnePiece(hasty, () => {
      if (!isStarted) hasty.say(start);
      for (const part of ['the ', 'last ', 'words']) hasty.write(part);
      hasty.say({ type: 'close_stdin' });
      hasty.socket.close();
    });
    await hasty.end();
    const next = await open(t.context, { version: 1, type: 'attach', process_id: process });
    await waitFor('the exit', async () => next.exit, 20_000);
    t.is(next.text, 'the last words');
    t.like(next.exit, { status: 'completed', exit_code: 0 });
  });
}

test('input that is left behind by a client of version 1 reaches a process that reads later', async (t) => {
  const process = randomUUID();
  const command = 'mkfifo /run/later; echo ready; read go </run/later; sha256sum';
  const start = { version: 1, type: 'start', process_id: process, command };
  const hasty = await open(t.context, start);
  await hasty.until(() => hasty.text === 'ready\n');
  const input = randomBytes(MiB);
  for (let at = 0; at < input.length; at += 50_000) hasty.write(input.subarray(at, at + 50_000));
  hasty.say({ type: 'close_stdin' });
  hasty.socket.close();
  await hasty.end();
  t.is(hasty.closed?.code, 1005, 'the server has read it all');
  const other = await open(t.context, { type: 'start', command: 'echo go >/run/later' });
  await other.end();
  const next = await open(t.context, { version: 1, type: 'attach', process_id: process });
  await waitFor('the exit', async () => next.exit, 20_000);
  t.is(next.text, `ready\n${createHash('sha256').update(input).digest('hex')}  -\n`);
});

const SHORT_FRAMES = 10_000;

test('short frames of version 1 are read while the process does not, and written together', async (t) => {
  let writes = 0;
  t.context.fixture.processes.useBy({
    attachedClient: () => () => undefined,
    fileRequest: () => () => undefined,
    input: () => {
      writes += 1; // Each write is a use.
    },
    environment: () => ({}),
  });
  const command = 'mkfifo /run/short; echo ready; read go </run/short; wc -c';
  const session = await open(t.context, { version: 1, type: 'start', command });
  await session.until(() => session.text === 'ready\n');
  const filled = 64 * KiB; // So much the guest takes at once.
  session.write(Buffer.alloc(2 * filled));
  inOnePiece(session, () => {
    for (let sent = 0; sent < SHORT_FRAMES; sent += 1) session.write('x');
  });
  session.say({ type: 'close_stdin' });
  await once(session.socket, 'pong', { signal: pinged(session) });
  const other = await open(t.context, { type: 'start', command: 'echo go >/run/short' });
  await other.end();
  await session.end();
  t.is(session.text, `ready\n${2 * filled + SHORT_FRAMES}\n`);
  t.true(writes < 10, `${writes} writes`);

  writes = 0;
  const busy = await open(t.context, { version: 1, type: 'start', command: 'wc -c' });
  inOnePiece(busy, () => {
    for (let sent = 0; sent < SHORT_FRAMES; sent += 1) busy.write('x');
  });
  busy.say({ type: 'close_stdin' });
  await busy.end();
  t.is(busy.text, `${SHORT_FRAMES}\n`);
  t.true(writes < SHORT_FRAMES / 10, `${writes} writes`);
});

test('a client of version 1 is not read when as much waits as may, and is never refused', async (t) => {
  const command = 'mkfifo /run/long; echo ready; read go </run/long; wc -c';
  const session = await open(t.context, { version: 1, type: 'start', command });
  await session.until(() => session.text === 'ready\n');
  const serverSocket = t.context.serverSockets.at(-1);
  const frame = Buffer.alloc(EDGE_LIMITS.clientMessageBytesMax);
  session.write(frame.subarray(0, MiB));
  for (let sent = 0; sent < 5; sent += 1) session.write(frame);
  session.say({ type: 'close_stdin' });
  await waitFor('the pause', async () => serverSocket?.isPaused());
  const { bytesRead = Infinity } = serverSocket ?? {};
  t.true(bytesRead > 2 * MiB && bytesRead < 4.2 * MiB, `${bytesRead}`);
  const other = await open(t.context, { type: 'start', command: 'echo go >/run/long' });
  await other.end();
  await session.end();
  t.is(session.text, `ready\n${11 * MiB}\n`);
});

/** Pings the server, which answers once it has read what was sent before. */
function pinged({ socket }: TestConnection): AbortSignal {
  socket.ping();
  return AbortSignal.timeout(60_000);
}
