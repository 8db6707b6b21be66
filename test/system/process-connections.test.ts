/* Process connections over real sockets with a real virtual machine, which most tests share. */
import { once } from 'node:events';
import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type TestFn } from 'ava';
import * as fc from '../helpers/fast-check.ts';
import { run } from '../../agent/system/spawn.ts';
import { type ConnectionClaims, ConnectionSigner } from '../../shared/links/connection-token.ts';
import type { SandboxProcess } from '../../shared/schemas/sandbox-process.ts';
import { freePorts } from '../helpers/ports.ts';
import { openPage } from '../helpers/browser.ts';
import type { ApiClient } from '../helpers/api.ts';
import {
  bring,
  createSandbox,
  execIn,
  getSandbox,
  machineOf,
  machinesOf,
  removeSandbox,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { connectionUrl, runAttached, TestConnection } from '../helpers/test-connection.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

interface Context {
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly id: string;
  /** Its pages may use control and agents. */
  readonly pageOrigin: string;
}
const test = anyTest as TestFn<Context>;

test.before(async (t) => {
  const [port] = await freePorts(1);
  const pageOrigin = `http://127.0.0.1:${port}`;
  const stack = await Stack.start({ ...sandboxSettings(), ALLOWED_ORIGINS: pageOrigin });
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const body = { env: { FROM_SANDBOX: 'sandbox', BOTH: 'sandbox' }, max_concurrent_execs: 64 };
  const { sandbox_id: id } = await createSandbox(api, body);
  Object.assign(t.context, { api, id, pageOrigin });
});

test.after.always((t) => t.context.stack.stop());

test('a process reports its start, the output of both streams with offsets, and then its exit', async (t) => {
  const { api, id } = t.context;
  const command = 'printf abcdef; sleep 0.2; printf ghi >&2; exit 3';
  const session = await runAttached(api, id, command);
  const [first] = session.events;
  t.is(first?.type, 'started');
  t.true(session.processId.length > 0);
  t.deepEqual(
    session.frames.map(({ stream, offset, bytes }) => [stream, offset, bytes.toString()]),
    [
      [1, 0, 'abcdef'],
      [2, 6, 'ghi'],
    ],
  );
  t.deepEqual(session.exit, {
    type: 'exit',
    status: 'failed',
    cursor: 9,
    exit_code: 3,
    exit_reason: 'exit code 3',
  });
  t.deepEqual(session.closed, { code: 1000, reason: 'exit code 3' });
});

test('a process ends as completed, signalled, killed or timed out', async (t) => {
  const { api, id } = t.context;
  const completed = await runAttached(api, id, 'true');
  t.like(completed.exit, { status: 'completed', exit_code: 0, cursor: 0 });
  const signalled = await runAttached(api, id, 'kill -SEGV $$');
  t.like(signalled.exit, { status: 'failed', exit_code: 139, exit_reason: 'ended by SIGSEGV' });
  const timedOut = await runAttached(api, id, 'sleep 1000', { timeout_seconds: 1 });
  t.is(timedOut.exit?.status, 'timed_out');
  t.false('exit_code' in (timedOut.exit ?? {}));
});

test('a process has the documented environment, directory and shell', async (t) => {
  const { api, id } = t.context;
  const command = 'echo $FROM_SANDBOX $BOTH $OWN $PWD $0';
  const options = { env: { BOTH: 'process', OWN: 'own' }, cwd: '/usr/share' };
  const session = await runAttached(api, id, command, options);
  t.is(session.text, 'sandbox process own /usr/share sh\n');
  const lost = await runAttached(api, id, 'true', { cwd: '/no/such' });
  t.is(lost.error, 'process_failed', JSON.stringify([lost.events, lost.closed]));
  t.regex(lost.events[0]?.message ?? '', /the directory to run it in is not there/u);
});

test('input arrives in order in frames of a megabyte, followed by its end', async (t) => {
  const { api, id } = t.context;
  const session = await TestConnection.open(api, id, {
    type: 'start',
    command: 'sha256sum; echo end',
  });
  const bytes = Buffer.alloc(1024 * 1024, 'input\n');
  for (let frame = 0; frame < 3; frame += 1) session.write(bytes);
  session.say({ type: 'close_stdin' });
  await session.end();
  const expected = createHash('sha256').update(bytes).update(bytes).update(bytes).digest('hex');
  t.is(session.text, `${expected}  -\nend\n`);
  session.say({ type: 'close_stdin' }); // After the exit: nothing.
});

test('processes of sessions are listed while they run and after their end', async (t) => {
  const { api, id, stack } = t.context;
  const listed = async (processId: string): Promise<SandboxProcess | undefined> => {
    const path = `/api/sandboxes/${id}/processes`;
    const { processes } = await api.data<{ processes: SandboxProcess[] }>('GET', path);
    return processes.find((each) => each.process_id === processId);
  };
  const command = `printf four; read go; exit 3 # ${'x'.repeat(5000)}`;
  const terminal = { cols: 100, rows: 30 };
  const session = await TestConnection.open(api, id, { type: 'start', command, terminal });
  await session.until(() => session.text === 'four');
  const { processId } = session;
  const { pid, ...running } = (await listed(processId)) ?? {};
  t.true(Number(pid) > 1);
  t.deepEqual(running, {
    ...{ process_id: processId, status: 'running', terminal, attached_clients: 1 },
    ...{ command: command.slice(0, 4096), command_truncated: true, output_bytes: 4 },
  });
  session.write('\n');
  await session.end();
  const ended = await listed(processId);
  t.like(ended, {
    status: 'failed',
    exit_code: 3,
    exit_reason: 'exit code 3',
    attached_clients: 0,
  });
  t.true(Date.parse(ended?.ended_at ?? '') > 0);
  const other = await stack.newClient();
  t.is((await other.call('GET', `/api/sandboxes/${id}/processes`)).status, 404);
});

test('a client that comes back at its offset gets the rest, exactly once', async (t) => {
  const { api, id } = t.context;
  const command = 'read go; seq 20000; read go; seq 20000; exit 5';
  const first = await TestConnection.open(api, id, { type: 'start', command });
  await first.until(() => first.processId !== '');
  first.write('\n');
  await first.until(() => first.cursor === 108_894);
  first.drop();
  const { processId } = first;
  const second = await TestConnection.open(api, id, {
    type: 'attach',
    process_id: processId,
    offset: 100_000,
  });
  await second.until(() => second.cursor === 108_894);
  t.is(second.events[0]?.process_id, processId);
  t.is(second.frames[0]?.offset, 100_000);
  t.is(second.text, first.text.slice(100_000));
  second.write('\n');
  await second.end();
  t.is(second.text.length, 117_788);
  t.like(second.exit, { status: 'failed', exit_code: 5, cursor: 217_788 });
  const third = await TestConnection.open(api, id, {
    type: 'attach',
    process_id: processId,
    offset: 0,
  });
  await third.end();
  t.is(third.text, first.text + first.text);
  t.like(third.exit, { status: 'failed', exit_code: 5, cursor: 217_788 });
});

test('each of two clients of a process gets all of its output and may write', async (t) => {
  const { api, id } = t.context;
  const first = await TestConnection.open(api, id, { type: 'start', command: 'cat' });
  await first.until(() => first.processId !== '');
  first.write('one\n');
  await first.until(() => first.cursor === 4);
  const attach = { type: 'attach', process_id: first.processId, offset: 0 };
  const second = await TestConnection.open(api, id, attach);
  await second.until(() => second.cursor === 4);
  second.write('two\n');
  await Promise.all([first, second].map((each) => each.until(() => each.cursor === 8)));
  first.say({ type: 'close_stdin' });
  await Promise.all([first.end(), second.end()]);
  t.is(first.text, 'one\ntwo\n');
  t.is(second.text, 'one\ntwo\n');
  t.is(second.exit?.status, 'completed');
});

test('a kill ends the whole group, while clients are attached and while none is', async (t) => {
  const { api, id } = t.context;
  const command = 'sleep 98765 & sleep 98765';
  const attached = await TestConnection.open(api, id, { type: 'start', command });
  const detached = await TestConnection.open(api, id, { type: 'start', command });
  await attached.until(() => attached.processId !== '');
  await detached.until(() => detached.processId !== '');
  detached.drop();
  for (const { processId } of [attached, detached]) {
    const kill = await TestConnection.open(api, id, { type: 'kill', process_id: processId });
    await kill.end();
    t.deepEqual(kill.events, [{ type: 'killed' }]);
  }
  await attached.end();
  t.like(attached.exit, { status: 'cancelled', exit_reason: 'process killed' });
  t.false('exit_code' in (attached.exit ?? {}));
  const later = await TestConnection.open(api, id, {
    type: 'attach',
    process_id: detached.processId,
    offset: 0,
  });
  await later.end();
  t.is(later.exit?.status, 'cancelled');
  const again = await TestConnection.open(api, id, {
    type: 'kill',
    process_id: attached.processId,
  });
  t.deepEqual((await again.end()).events, [{ type: 'killed' }]);
  t.is((await execIn(api, id, "pgrep -xf 'sleep 98765'")).exit_code, 1);
});

test('a terminal has its size, and its program sees a new one', async (t) => {
  const { api, id } = t.context;
  const command =
    "trap 'stty size' WINCH; stty size; echo $TERM; while :; do read x && break; done";
  const session = await TestConnection.open(api, id, {
    type: 'start',
    command,
    terminal: { cols: 101, rows: 31 },
  });
  await session.until(() => session.text.includes('xterm-256color'));
  t.true(session.text.startsWith('31 101\r\n'));
  const resize = await TestConnection.open(api, id, {
    type: 'resize',
    process_id: session.processId,
    cols: 90,
    rows: 20,
  });
  t.deepEqual((await resize.end()).events, [{ type: 'resized' }]);
  session.write('\r');
  await session.until(() => session.text.includes('20 90'));
  session.say({ type: 'close_stdin' }); // Nothing, for a terminal.
  session.write('\r');
  await session.end();
  t.is(session.of(2), '');
  const pipes = await TestConnection.open(api, id, { type: 'start', command: 'cat' });
  await pipes.until(() => pipes.processId !== '');
  const refused = await TestConnection.open(api, id, {
    type: 'resize',
    process_id: pipes.processId,
    cols: 90,
    rows: 20,
  });
  t.is((await refused.end()).error, 'invalid_request');
  pipes.say({ type: 'close_stdin' });
  await pipes.end();
});

test('a login shell has job control, signals and end of input by keys', async (t) => {
  const { api, id } = t.context;
  const session = await TestConnection.open(api, id, {
    type: 'start',
    command: '/bin/sh -l',
    terminal: true,
  });
  await session.until(() => session.text.includes('# '));
  // The job prints this itself, so that the keys meet the job and not the shell before it.
  session.write("stty size; sh -c 'echo job-$((40+2)); exec sleep 1000'\r");
  await session.until(() => session.text.includes('24 80') && session.text.includes('job-42'));
  session.write('\u0003'); // Ctrl-C ends the sleep, not the shell.
  session.write('echo still-$((40+2))\r');
  await session.until(() => session.text.includes('still-42'));
  session.write('\u0004'); // Ctrl-D.
  await session.end();
  t.is(session.exit?.status, 'completed');
});

test('unknown processes, malformed messages and excesses are refused', async (t) => {
  const { api, id } = t.context;
  const refuse = async (first: object): Promise<(string | number | undefined)[]> => {
    const session = await (await TestConnection.open(api, id, first)).end();
    return [session.error, session.closed?.code];
  };
  const unknown = { process_id: 'b4a5b0d4-0000-4000-8000-000000000000' };
  t.deepEqual(await refuse({ type: 'attach', ...unknown, offset: 0 }), ['process_not_found', 1000]);
  t.deepEqual(await refuse({ type: 'kill', ...unknown }), ['process_not_found', 1000]);
  t.deepEqual(await refuse({ type: 'resize', ...unknown, cols: 1, rows: 1 }), [
    'process_not_found',
    1000,
  ]);
  const wrong: object[] = [
    {},
    { type: 'close_stdin' },
    { type: 'start' },
    { type: 'start', command: '' },
    { type: 'start', command: 'a\0b' },
    { type: 'start', command: 'true', cwd: 'relative' },
    { type: 'start', command: 'true', timeout_seconds: 0 },
    { type: 'start', command: 'true', env: { 'A=B': 'c' } },
    { type: 'start', command: 'true', terminal: { cols: 0, rows: 10 } },
    { type: 'attach', ...unknown, offset: -1 },
  ];
  for (const first of wrong) {
    t.deepEqual(await refuse(first), ['invalid_request', 1008], JSON.stringify(first));
  }
  const binary = await TestConnection.open(api, id);
  binary.write('no start');
  t.is((await binary.end()).error, 'invalid_request');
  const text = await TestConnection.open(api, id, { type: 'start', command: 'cat' });
  await text.until(() => text.processId !== '');
  text.say({ type: 'start', command: 'true' });
  t.is((await text.end()).error, 'invalid_request');
  const kill = await TestConnection.open(api, id, { type: 'kill', process_id: text.processId });
  t.deepEqual((await kill.end()).events, [{ type: 'killed' }]);
  const huge = await TestConnection.open(api, id);
  huge.write(Buffer.alloc(3 * 1024 * 1024));
  t.is((await huge.end()).closed?.code, 1009);
});

const refusal = async (url: string): Promise<number | undefined> =>
  (await new TestConnection(url).end()).refused;

/** The token of the URL, a moment after its end. */
function expiredToken(stack: Stack, url: string): string {
  const [, body = ''] = new URL(url).searchParams.get('token')?.split('.') ?? [];
  const claims = JSON.parse(Buffer.from(body, 'base64url').toString()) as ConnectionClaims;
  const keys = toRing((stack.environment['SIGNING_KEYS'] ?? '').split(','));
  return new ConnectionSigner(keys, claims.region).sign({ ...claims, expiresAt: Date.now() - 1 });
}

test('tampered, expired, foreign and missing tokens are refused, as are other upgrades', async (t) => {
  const { api, id, stack } = t.context;
  const url = await connectionUrl(api, id);
  t.is(await refusal(`${url.slice(0, -3)}abc`), 401);
  t.is(await refusal(url.replace(id, 'b4a5b0d4-0000-4000-8000-000000000000')), 401);
  t.is(await refusal(url.replace(/token=.*/u, `token=${expiredToken(stack, url)}`)), 401);
  t.is(await refusal(url.replace(/token=.*/u, 'token=')), 400);
  t.is(await refusal(url.replace(/\/sandboxes.*/u, '/dsk-0000000000000000/key')), 400);
  t.is(await refusal(`${url}&x=1`), 400);
  t.is(stack.agent.isRunning, true);
});

test('a sandbox limits its attached clients; those that left do not count', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { max_concurrent_execs: 2 });
  const start = { type: 'start', command: 'cat' };
  const one = await TestConnection.open(api, id, start);
  const two = await TestConnection.open(api, id, start);
  await Promise.all([one, two].map((each) => each.until(() => each.processId !== '')));
  const third = await (await TestConnection.open(api, id, start)).end();
  t.is(third.error, 'max_concurrent_execs_reached');
  const kill = await TestConnection.open(api, id, { type: 'kill', process_id: one.processId });
  t.deepEqual((await kill.end()).events, [{ type: 'killed' }]);
  two.drop();
  await waitFor('a place', async () => {
    const session = await TestConnection.open(api, id, { type: 'start', command: 'true' });
    return (await session.end()).exit?.status === 'completed';
  });
  await removeSandbox(api, id);
});

test('a sandbox has no more connections than its limit and 64', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { max_concurrent_execs: 1 });
  const url = await connectionUrl(api, id);
  const sessions = Array.from({ length: 66 }, () => new TestConnection(url));
  await Promise.all(sessions.map((each) => each.until(() => each.isOpen).catch(() => undefined)));
  t.is(sessions.filter(({ isOpen }) => isOpen).length, 65);
  t.deepEqual(
    sessions.flatMap(({ refused }) => refused ?? []),
    [429],
  );
  for (const session of sessions) session.drop();
  await removeSandbox(api, id);
});

test('a pause closes sessions without an exit; after the resume they go on where they were', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const session = await TestConnection.open(api, id, { type: 'start', command: 'cat' });
  await session.until(() => session.processId !== '');
  session.write('before\n');
  await session.until(() => session.cursor === 7);
  const waiting = await TestConnection.open(api, id, { type: 'start', command: 'sleep 1000' });
  await waiting.until(() => waiting.processId !== '');
  waiting.write(Buffer.alloc(1024 * 1024)); // More than anybody takes.
  const url = await connectionUrl(api, id);
  await bring(api, id, 'pause', 'paused');
  await session.end();
  const closedAt = Date.now();
  await waiting.end();
  t.is(waiting.closed?.code, 1001);
  t.true(Date.now() - closedAt < 20_000, 'the host did not read the end of the handshake');
  t.is(session.closed?.code, 1001);
  t.is(session.exit, undefined);
  t.is((await new TestConnection(url).end()).refused, 409);
  await bring(api, id, 'resume', 'running');
  const attach = { type: 'attach', process_id: session.processId, offset: 7 };
  const again = await TestConnection.open(api, id, attach);
  again.write('after\n');
  await again.until(() => again.cursor === 13);
  t.is(again.text, 'after\n');
  await bring(api, id, 'stop', 'stopped');
  await again.end();
  t.like(again.exit, { status: 'cancelled', exit_reason: 'sandbox stopped', cursor: 13 });
  t.is((await getSandbox(api, id)).status, 'stopped');
  await removeSandbox(api, id);
});

test('a client that sends no first message gets nothing and is disconnected', async (t) => {
  const { api, id } = t.context;
  const session = await (await TestConnection.open(api, id)).end();
  t.deepEqual(session.events, []);
  t.is(session.closed?.code, 1008);
});

test('a sandbox that ends by itself ends its processes, and says so', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const session = await TestConnection.open(api, id, { type: 'start', command: 'cat' });
  await session.until(() => session.processId !== '');
  await TestConnection.open(api, id, { type: 'start', command: 'kill -TERM 1' });
  await session.end();
  t.like(session.exit, { status: 'cancelled', exit_reason: 'sandbox ended', cursor: 0 });
  t.false('exit_code' in (session.exit ?? {}));
  t.is(session.closed?.code, 1000);
  await waitFor('its end', async () => (await getSandbox(api, id)).status === 'exited');
  await removeSandbox(api, id);
});

/** Mistakes that a client may make, in sequence. */
const hostileSteps = fc.array(
  fc.oneof(
    fc.record({ text: fc.oneof(fc.json(), fc.string()) }),
    fc.record({ binary: fc.uint8Array({ maxLength: 2000 }) }),
    fc.record({
      text: fc
        .record(
          {
            type: fc.constantFrom('start', 'attach', 'kill', 'resize', 'close_stdin', 'exit'),
            command: fc.oneof(
              fc.constantFrom('cat', 'true', 'yes | head -c 300000'),
              fc.anything(),
            ),
            process_id: fc.oneof(fc.uuid(), fc.string(), fc.anything()),
            offset: fc.oneof(fc.nat(), fc.anything()),
            cols: fc.anything(),
            rows: fc.anything(),
            terminal: fc.anything(),
            env: fc.anything(),
            timeout_seconds: fc.oneof(fc.integer(), fc.anything()),
            cwd: fc.anything(),
          },
          { requiredKeys: ['type'] },
        )
        .map((message) => {
          try {
            return JSON.stringify(message);
          } catch {
            return '{';
          }
        }),
    }),
    fc.record({ raw: fc.uint8Array({ minLength: 1, maxLength: 200 }) }),
    fc.constant({ ping: true }),
    fc.constant({ close: true }),
    fc.constant({ drop: true }),
  ),
  { minLength: 1, maxLength: 6 },
);

type HostileStep = (typeof hostileSteps extends fc.Arbitrary<(infer T)[]> ? T : never) & object;

async function misbehave(url: string, steps: readonly HostileStep[]): Promise<void> {
  const session = new TestConnection(url);
  await session.until(() => session.isOpen).catch(() => undefined);
  for (const step of steps) {
    if (!session.isOpen) break;
    if ('text' in step) session.socket.send(step.text);
    else if ('binary' in step) session.socket.send(step.binary);
    else if ('raw' in step) session.rawSocket?.write(step.raw);
    else if ('ping' in step) session.socket.ping();
    else if ('close' in step) session.socket.close();
    else session.drop();
    await sleep(1);
  }
  await sleep(5);
  session.drop();
}

test('clients that break every rule harm nobody else', async (t) => {
  const { api, stack } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { max_concurrent_execs: 8 });
  const witness = await TestConnection.open(api, id, { type: 'start', command: 'cat' });
  await witness.until(() => witness.processId !== '');
  const url = await connectionUrl(api, id);
  let runs = 0;
  const property = fc.asyncProperty(hostileSteps, async (steps) => {
    await misbehave(url, steps);
    runs += 1;
    witness.write('x');
    await witness.until(() => witness.cursor === runs);
  });
  await fc.assert(property, { numRuns: isFull ? 2000 : 120, endOnFailure: true });
  witness.say({ type: 'close_stdin' });
  await witness.end();
  t.is(witness.exit?.status, 'completed');
  t.true(stack.agent.isRunning);
  // Their processes have let them go.
  await waitFor('all eight places', async () => {
    const start = { type: 'start', command: 'sleep 1' };
    const open = Array.from({ length: 8 }, async () => TestConnection.open(api, id, start));
    const ended = await Promise.all((await Promise.all(open)).map((each) => each.end()));
    return ended.every(({ exit }) => exit?.status === 'completed');
  });
  await removeSandbox(api, id);
});

test('a full-screen program is drawn, and drawn again for a new size', async (t) => {
  const { api, id } = t.context;
  // top exits with 1 when SIGWINCH interrupts a write to its terminal (Debian 12's installs the
  // handler without SA_RESTART). A small screen is one write, which is over once it was read.
  const session = await TestConnection.open(api, id, {
    type: 'start',
    command: 'top -d 100',
    terminal: { cols: 60, rows: 10 },
  });
  await session.until(() => session.text.includes('load average'));
  const { cursor } = session;
  const resize = { type: 'resize', process_id: session.processId, cols: 100, rows: 30 };
  await (await TestConnection.open(api, id, resize)).end();
  await session.until(() => session.text.slice(cursor).includes('load average'));
  session.write('q');
  await session.end();
  const said = [session.exit, session.text.slice(-100)];
  t.is(session.exit?.status, 'completed', JSON.stringify(said));
});

test('Node’s own WebSocket runs a command', async (t) => {
  const { api, id } = t.context;
  const socket = new globalThis.WebSocket(await connectionUrl(api, id));
  socket.binaryType = 'arraybuffer';
  const seen: string[] = [];
  const closed = new Promise<CloseEvent>((resolve) => {
    socket.addEventListener('close', resolve);
  });
  socket.addEventListener('open', () =>
    socket.send(JSON.stringify({ type: 'start', command: 'cat; exit 7', env: {} })),
  );
  socket.addEventListener('message', ({ data }) => {
    if (data instanceof ArrayBuffer) {
      seen.push(Buffer.from(data).subarray(9).toString());
      socket.send(JSON.stringify({ type: 'close_stdin' }));
      return;
    }
    const event = JSON.parse(String(data)) as { type: string; exit_code?: number };
    seen.push(`${event.type} ${event.exit_code ?? ''}`);
    if (event.type === 'started') socket.send(Buffer.from('hello'));
  });
  t.is((await closed).code, 1000);
  t.deepEqual(seen, ['started ', 'hello', 'exit 7']);
});

/** Prints how it went, one line each. */
const PYTHON = `
import asyncio, json, sys, websockets
async def main():
    async with websockets.connect(sys.argv[1], compression=None) as socket:
        await socket.send(json.dumps({'type': 'start', 'command': 'cat', 'env': {}}))
        print(json.loads(await socket.recv())['type'])
        await socket.send(b'x' * 1048576)
        await socket.send(json.dumps({'type': 'close_stdin'}))
        total = 0
        async for message in socket:
            if isinstance(message, bytes):
                assert int.from_bytes(message[1:9], 'big') == total
                total += len(message) - 9
            else:
                event = json.loads(message)
                print(event['type'], event['status'], event['exit_code'], event['cursor'], total)
asyncio.run(main())
`;
import { toRing } from '../../shared/secrets.ts';

test('Debian’s python3-websockets runs a command', async (t) => {
  const { api, id } = t.context;
  const url = await connectionUrl(api, id);
  const output = await run('/usr/bin/python3', ['-c', PYTHON, url], { timeoutMs: 60_000 });
  t.is(output, 'started\nexit completed 0 1048576 1048576\n');
});

test('a browser runs a command', async (t) => {
  const { api, id, stack, pageOrigin } = t.context;
  const url = await connectionUrl(api, id);
  const told = Promise.withResolvers<string>();
  const page = `<!doctype html><script>
    const socket = new WebSocket(${JSON.stringify(url)});
    socket.binaryType = 'arraybuffer';
    let said = '';
    socket.onopen = () => socket.send(JSON.stringify({type: 'start', command: 'cat; exit 3', env: {}}));
    socket.onmessage = ({data}) => {
      if (data instanceof ArrayBuffer) {
        said += new TextDecoder().decode(new Uint8Array(data, 9));
        if (said.endsWith('!')) socket.send(JSON.stringify({type: 'close_stdin'}));
      } else if (JSON.parse(data).type === 'started') {
        socket.send(new TextEncoder().encode('from a browser!'));
      } else said += ' ' + data;
    };
    socket.onclose = ({code}) => fetch('/told?' + encodeURIComponent(said + ' ' + code));
  </script>`;
  const server = createServer((request, response) => {
    const { search } = new URL(request.url ?? '/', 'http://page');
    if (request.url?.startsWith('/told') === true) told.resolve(decodeURIComponent(search));
    response.writeHead(200, { 'content-type': 'text/html' }).end(page);
  });
  const { port, hostname } = new URL(pageOrigin);
  server.listen(Number(port), hostname);
  t.teardown(() => server.close());
  await once(server, 'listening');
  await using _ = await openPage(`${pageOrigin}/`, stack.directory);
  const seen = await told.promise;
  t.true(seen.startsWith('?from a browser! '), seen);
  t.true(seen.endsWith('"exit_code":3,"exit_reason":"exit code 3"} 1000'), seen);
});

test('a sandbox with an attached client is not idle, and its lifetime stays as it was', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { idle_ttl_seconds: 2 });
  const session = await TestConnection.open(api, id, { type: 'start', command: 'cat' });
  await session.until(() => session.processId !== '');
  const during = await getSandbox(api, id);
  await sleep(3_500);
  const still = await getSandbox(api, id);
  t.is(still.status, 'running');
  // The end is computed anew from a clock that cannot be set, so it may differ by rounding.
  const changeMs = Date.parse(still.expires_at ?? '') - Date.parse(during.expires_at ?? '');
  t.true(Math.abs(changeMs) < 100, `${changeMs} ms`);
  session.drop();
  const leftAt = Date.now();
  await waitFor('it to pause', async () => (await getSandbox(api, id)).status === 'paused');
  t.true(Date.now() - leftAt >= 1_500);
  await removeSandbox(api, id);
});

test('clients of a machine that is killed learn that their processes have ended', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const session = await TestConnection.open(api, id, { type: 'start', command: 'cat' });
  await session.until(() => session.processId !== '');
  session.write('kept');
  await session.until(() => session.cursor === 4);
  for (const pid of await machinesOf([id])) process.kill(pid, 'SIGKILL');
  await session.end();
  t.like(session.exit, { status: 'cancelled', exit_reason: 'sandbox ended', cursor: 4 });
  t.is(session.closed?.code, 1000);
  await removeSandbox(api, id);
});

test('a time limit of a process stands still while its sandbox is paused', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const start = { type: 'start', command: 'sleep 1000', timeout_seconds: 4 };
  const session = await TestConnection.open(api, id, start);
  await session.until(() => session.processId !== '');
  await bring(api, id, 'pause', 'paused');
  await sleep(5_000);
  await bring(api, id, 'resume', 'running');
  const resumedAt = Date.now();
  const attach = { type: 'attach', process_id: session.processId, offset: 0 };
  const again = await (await TestConnection.open(api, id, attach)).end();
  t.is(again.exit?.status, 'timed_out');
  t.true(Date.now() - resumedAt > 500, 'its time ran on during the pause');
  await removeSandbox(api, id);
});

const testInFull = isFull ? test : (test.skip as typeof test);

testInFull('the server pings its clients', async (t) => {
  const { api, id } = t.context;
  const session = await TestConnection.open(api, id, { type: 'start', command: 'cat' });
  await once(session.socket, 'ping');
  t.true(session.isOpen);
  session.say({ type: 'close_stdin' });
  await session.end();
});

testInFull('a sandbox that does not answer is told as such', async (t) => {
  const { api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const machine = await machineOf(id);
  process.kill(machine, 'SIGSTOP');
  const session = await TestConnection.open(api, id, { type: 'start', command: 'true' });
  await session.end();
  t.deepEqual([session.error, session.closed?.code], ['internal_error', 1011]);
  process.kill(machine, 'SIGCONT');
  await removeSandbox(api, id);
});
