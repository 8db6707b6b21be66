/*
 * Process connections lose nothing for their clients. One stack of its own: its agent and control
 * nodes are killed, its sandbox is paused, its clients stall.
 */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type TestFn } from 'ava';
import { MiB } from '../../shared/units.ts';
import { ApiClient } from '../helpers/api.ts';
import {
  bring,
  createSandbox,
  outputOf,
  removeSandbox,
  sandboxSettings,
} from '../helpers/sandboxes.ts';
import { TestConnection } from '../helpers/test-connection.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';
import { isFull } from '../helpers/full.ts';

interface Context {
  readonly stack: Stack;
  readonly api: ApiClient;
}
const test = anyTest.serial as TestFn<Context>;

anyTest.before(async (t) => {
  const stack = await Stack.start(sandboxSettings());
  Object.assign(t.context as Context, { stack });
  Object.assign(t.context as Context, { api: await stack.newClient() });
});

anyTest.after.always((t) => (t.context as Context).stack.stop());

/** Attaches as often as a session may be refused while agents come and go. */
async function attach(
  api: ApiClient,
  id: string,
  processId: string,
  offset: number,
): Promise<TestConnection> {
  return waitFor(
    'a session',
    async () => {
      const first = { type: 'attach', process_id: processId, offset };
      const session = await TestConnection.open(api, id, first).catch(() => undefined);
      await session?.until(() => session.events.length > 0).catch(() => undefined);
      return session?.events[0]?.type === 'attached' ? session : undefined;
    },
    60_000,
  );
}

const BLOCK_BYTES = MiB;
const BLOCKS = isFull ? 100 : 12;
/** Puts out a block of random bytes for each line of input, and at the end their checksum. */
const PRODUCER = [
  `while read -r line; do head -c ${BLOCK_BYTES} /dev/urandom | tee -a /root/all; done`,
  'sha256sum </root/all >&2',
].join('; ');

test('a random stream is whole across lost clients, a killed agent, a pause and a dead control node', async (t) => {
  const { stack, api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { mem_size_mib: 512 });
  const second = await stack.addControl();
  await second.start();
  const hash = createHash('sha256');
  let checksum = '';
  let cursor = 0;
  const read = (session: TestConnection): void => {
    session.readFrames(({ stream, offset, bytes }) => {
      if (offset < cursor) throw new Error('bytes that came before came again');
      t.is(offset, cursor); // No gap either.
      cursor += bytes.length;
      if (stream === 1) hash.update(bytes);
      else checksum += bytes.toString();
    });
  };
  let client = api;
  let session = await TestConnection.open(client, id);
  read(session);
  session.say({ type: 'start', command: PRODUCER, env: {} });
  await session.until(() => session.processId !== '');
  const { processId } = session;
  const incidents: Readonly<Record<number, () => Promise<void>>> = {
    2: async () => {
      await stack.agent.stop('SIGKILL');
      await stack.startAgent();
    },
    4: async () => {
      await bring(client, id, 'pause', 'paused');
      await bring(client, id, 'resume', 'running');
    },
    6: async () => {
      await stack.control.stop('SIGKILL');
      client = new ApiClient(second.environment['PUBLIC_BASE_URL'] ?? '', api.key);
      await stack.startControl(); // This client does not ask that node any more.
    },
    8: async () => session.drop(),
  };
  for (let block = 1; block <= BLOCKS; block += 1) {
    session.write('next\n');
    const incident = incidents[block] ?? (block % 10 === 9 ? incidents[8] : undefined);
    if (incident !== undefined) {
      // In the middle of a block: what has not come yet is kept by the guest.
      const from = (block - 1) * BLOCK_BYTES;
      await session.until(() => cursor > from + 100_000);
      await incident();
      session.drop();
      session = await attach(client, id, processId, cursor);
      read(session);
    }
    await session.until(() => cursor === block * BLOCK_BYTES);
  }
  session.say({ type: 'close_stdin' });
  await session.end();
  t.is(session.exit?.status, 'completed');
  t.is(session.exit?.cursor, cursor);
  t.is(checksum.split(' ')[0], hash.digest('hex'));
  await removeSandbox(client, id);
});

test('a process does not wait for an agent that is gone, and the newest of its output is kept', async (t) => {
  const { stack, api } = t.context;
  const { sandbox_id: id } = await createSandbox(api);
  const command = 'read go; seq 2000000; date +%s >/root/done';
  const session = await TestConnection.open(api, id, { type: 'start', command });
  await session.until(() => session.processId !== '');
  session.socket.pause(); // An attached client that does not read holds the process back …
  session.write('\n');
  await sleep(1_000);
  await stack.agent.stop('SIGKILL'); // … until there is nobody to wait for.
  await sleep(4_000);
  const killedAt = Math.floor(Date.now() / 1000);
  await stack.startAgent();
  const done = await waitFor(
    'the process to end',
    async () => (await outputOf(api, id, 'cat /root/done 2>/dev/null || true')) || undefined,
    60_000,
  );
  t.log(`it ended ${killedAt - Number(done)} s before the agent was back`);
  const again = await attach(api, id, session.processId, 0);
  await again.end();
  const [first] = again.frames;
  const end = 14_888_896;
  t.is(again.exit?.cursor, end);
  t.is(first?.offset, end - 4 * MiB);
  t.true(again.text.endsWith('1999999\n2000000\n'));
  session.drop();
  await removeSandbox(api, id);
});

async function residentBytes(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/^VmRSS:\s+(\d+) kB$/mu.exec(status)?.[1]) * 1024;
}

test('a client that reads nothing costs the agent no memory, and loses nothing when it reads on', async (t) => {
  const { stack, api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { vcpu_count: 2 });
  const session = await TestConnection.open(api, id, { type: 'start', command: 'seq 3000000' });
  await session.until(() => session.cursor > 0);
  session.socket.pause();
  await sleep(500);
  const before = await residentBytes(stack.agent.pid);
  // Another session is served meanwhile.
  const quiet = await TestConnection.open(api, id, { type: 'start', command: 'cat' });
  await quiet.until(() => quiet.processId !== '');
  for (let count = 1; count <= 50; count += 1) {
    quiet.write('x');
    await quiet.until(() => quiet.cursor === count);
    await sleep(40);
  }
  t.true((await residentBytes(stack.agent.pid)) - before < 32 * MiB);
  quiet.say({ type: 'close_stdin' });
  await quiet.end();
  session.socket.resume();
  await session.end();
  t.like(session.exit, { status: 'completed', cursor: 22_888_896 });
  let next = 0;
  for (const { offset, bytes } of session.frames) {
    t.is(offset, next);
    next += bytes.length;
  }
  t.is(next, 22_888_896);
  await removeSandbox(api, id);
});

(isFull ? test : (test.skip as typeof test))(
  'a client that takes nothing for 30 s is cut off, and its process runs on',
  async (t) => {
    const { api } = t.context;
    const { sandbox_id: id } = await createSandbox(api);
    const command = 'seq 2000000; date >/root/ended';
    const session = await TestConnection.open(api, id, { type: 'start', command });
    await session.until(() => session.cursor > 0);
    session.socket.pause();
    await waitFor(
      'the process to run on',
      async () => (await outputOf(api, id, 'cat /root/ended 2>/dev/null || true')) !== '',
      90_000,
    );
    session.socket.resume();
    await session.end();
    t.is(session.closed?.code, 1006);
    t.is(session.exit, undefined);
    await removeSandbox(api, id);
  },
);
