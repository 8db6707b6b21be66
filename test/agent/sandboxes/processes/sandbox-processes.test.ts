/*
 * Processes of sessions on a real guest agent, whose connection to the host breaks. Goal: no byte
 * of input or output is lost or doubled, and every start, exit and kill is told once.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import {
  GUEST_LIMITS,
  PROCESS_FLAGS,
} from '../../../../agent/machines/guest-link/guest-protocol.ts';
import { MiB } from '../../../../shared/units.ts';
import type { GuestPort } from '../../../helpers/guest.ts';
import { newProcesses, startProcesses } from '../../../helpers/guest-processes.ts';
import { InMemoryGuestLink } from '../../../helpers/in-memory-guest-link.ts';
import {
  attachClient,
  attachableSpec,
  startProcess,
  TestClient,
} from '../../../helpers/process-client.ts';
import { waitFor } from '../../../helpers/wait.ts';

/** Cuts the connection again and again until the work is done. */
async function whileCutting<T>(port: GuestPort, work: Promise<T>, everyMs: number): Promise<T> {
  const timer = setInterval(() => port.cut(), everyMs);
  try {
    return await work;
  } finally {
    clearInterval(timer);
  }
}

test('input and output pass whole through a connection that breaks again and again', async (t) => {
  await using fixture = await startProcesses();
  const { port, processes } = fixture;
  const client = await startProcess(processes, attachableSpec('cat'));
  const input = randomBytes(3 * MiB);
  const writing = async (): Promise<void> => {
    for (let at = 0; at < input.length; at += 50_000) {
      await client.process?.write(input.subarray(at, at + 50_000));
    }
    await client.process?.closeInput();
    await waitFor('the exit', async () => client.exit !== undefined, 60_000);
  };
  await whileCutting(port, writing(), 250);
  t.false(client.hasGap);
  t.true(client.bytes.equals(input));
  t.like(client.exit, { status: 'completed', exitCode: 0, cursor: input.length });
});

test('a start whose answer is lost starts one process, and tells it once', async (t) => {
  await using fixture = await startProcesses([], 31);
  const { port, processes } = fixture;
  const starting = Array.from({ length: 30 }, async (_, index) => {
    await sleep(index * 20);
    const client = await startProcess(
      processes,
      attachableSpec(`echo ${index} >>/run/started; echo ${index}`),
    );
    await waitFor('its exit', async () => client.exit !== undefined, 60_000);
    return client;
  });
  const clients: TestClient[] = [];
  const settle = async (): Promise<void> => {
    clients.push(...(await Promise.all(starting)));
  };
  await whileCutting(port, settle(), 130);
  t.is(clients.length, 30);
  for (const client of clients) t.is(client.startedTimes, 1);
  const all = await startProcess(processes, attachableSpec('sort /run/started | uniq -d'));
  await waitFor('the count', async () => all.exit !== undefined);
  t.is(all.bytes.toString(), '');
});

test('another agent finds the processes, their output and their ends', async (t) => {
  await using fixture = await startProcesses();
  const { link, port, processes } = fixture;
  const running = await startProcess(processes, attachableSpec('echo before; read x; echo $x'));
  const ended = await startProcess(processes, attachableSpec('echo done; exit 4'));
  await waitFor('the exit', async () => ended.exit !== undefined && running.cursor === 7);
  processes.disconnect();
  t.true(running.isDetached);
  link.close();
  const next = newProcesses();
  const nextLink = new InMemoryGuestLink(() => port.connect());
  t.teardown(() => nextLink.close());
  next.connect(nextLink);
  const told: string[] = [];
  const again = new TestClient(7);
  again.process = await next.attach(running.processId, 7, again, () => told.push('attached'));
  t.deepEqual(told, ['attached']);
  await again.process.write(Buffer.from('after\n'));
  await waitFor('the exit', async () => again.exit !== undefined);
  t.is(again.bytes.toString(), 'after\n');
  const late = new TestClient();
  late.process = await next.attach(ended.processId, 0, late, () => undefined);
  await waitFor('the old exit', async () => late.exit !== undefined);
  t.is(late.bytes.toString(), 'done\n');
  t.like(late.exit, { status: 'failed', exitCode: 4, cursor: 5 });
});

test('a process is killed once, and its clients learn it; an unknown one is told', async (t) => {
  await using fixture = await startProcesses();
  const { processes } = fixture;
  const client = await startProcess(processes, attachableSpec('sleep 1000'));
  await processes.kill(client.processId);
  await waitFor('the exit', async () => client.exit !== undefined);
  t.deepEqual(client.exit, { status: 'cancelled', reason: 'process killed', cursor: 0 });
  await processes.kill(client.processId);
  await t.throwsAsync(processes.kill('a2bfa8d4-3f1c-4c1f-8a86-000000000000'), {
    message: 'there is no such process',
  });
});

test('a client that is behind holds the process back, and nobody loses anything', async (t) => {
  await using fixture = await startProcesses();
  const { processes } = fixture;
  const slow = new TestClient();
  slow.process = await processes.start(attachableSpec('read x; seq 1000000'), slow, slow.started);
  const { process } = slow;
  slow.process = undefined; // The client acknowledges nothing.
  const fast = new TestClient();
  fast.process = await processes.attach(slow.processId, 0, fast, () => undefined);
  await process.write(Buffer.from('\n'));
  await waitFor('the window', async () => slow.cursor === GUEST_LIMITS.outputWindow);
  await sleep(100);
  t.is(fast.cursor, GUEST_LIMITS.outputWindow);
  slow.process = process;
  process.acknowledge(slow.cursor);
  await waitFor('both exits', async () => slow.exit !== undefined && fast.exit !== undefined);
  t.true(slow.bytes.equals(fast.bytes));
  t.is(slow.exit?.cursor, 6_888_896);
  t.is(slow.cursor, 6_888_896);
});

test('a client that leaves lets a process run on, and what it missed shows in the offsets', async (t) => {
  await using fixture = await startProcesses();
  const { processes } = fixture;
  const client = await startProcess(processes, attachableSpec('read x; seq 1000000; read x'));
  client.process?.detach();
  const attach = (offset: number): Promise<TestClient> => {
    const next = new TestClient(offset);
    return processes
      .attach(client.processId, offset, next, () => undefined)
      .then((attached) => {
        next.process = attached;
        return next;
      });
  };
  const writer = await attach(0);
  await writer.process?.write(Buffer.from('\n'));
  writer.process?.detach();
  await waitFor('all of it', async () => {
    const late = await attach(6_888_896);
    await sleep(20);
    const { link } = fixture;
    const [record] = (await link.channel?.list()) ?? [];
    late.process?.detach();
    return record?.end === 6_888_896;
  });
  const reader = await attach(100);
  await waitFor('the newest', async () => reader.cursor === 6_888_896);
  t.true(reader.hasGap);
  t.is(reader.bytes.length, 4 * MiB);
  t.true(reader.bytes.toString().endsWith('999999\n1000000\n'));
  await reader.process?.write(Buffer.from('\n'));
  await waitFor('the exit', async () => reader.exit !== undefined);
});

test('more clients than may attach are refused, and a place is given back once', async (t) => {
  await using fixture = await startProcesses([], 2);
  const { processes } = fixture;
  const one = await startProcess(processes, attachableSpec('cat'));
  const two = await startProcess(processes, attachableSpec('cat'));
  const refused = { message: /as many as the sandbox may have/u };
  await t.throwsAsync(startProcess(processes, attachableSpec('true')), refused);
  await t.throwsAsync(
    startProcess(processes, attachableSpec('true', { directory: '/no/such' })),
    refused,
  );
  one.process?.detach();
  one.process?.detach();
  await t.throwsAsync(startProcess(processes, attachableSpec('true', { directory: '/no/such' })), {
    message: /the directory to run it in is not there/u,
  });
  const three = await startProcess(processes, attachableSpec('cat'));
  await t.throwsAsync(startProcess(processes, attachableSpec('true')), refused);
  two.process?.detach();
  three.process?.detach();
});

test('a pause detaches clients, and the end of the machine ends their process', async (t) => {
  await using fixture = await startProcesses();
  const { processes } = fixture;
  const client = await startProcess(processes, attachableSpec('cat'));
  processes.releaseClients();
  t.true(client.isDetached);
  t.is(client.detachedBy, undefined);
  t.is(client.exit, undefined);
  await t.throwsAsync(startProcess(processes, attachableSpec('true')), {
    message: 'the sandbox is not running',
  });
  processes.acceptAgain();
  const again = new TestClient();
  again.process = await processes.attach(client.processId, 0, again, () => undefined);
  processes.loseAll('cancelled', 'sandbox stopped');
  t.deepEqual(again.exit, { status: 'cancelled', reason: 'sandbox stopped', cursor: 0 });
});

test('after a pause that failed, a process whose clients were sent away waits for none', async (t) => {
  await using fixture = await startProcesses();
  const { processes, link } = fixture;
  const client = new TestClient();
  // The client acknowledges nothing, so the process waits for it.
  const process = await processes.start(attachableSpec('seq 1000000'), client, client.started);
  await waitFor('the window', async () => client.cursor === GUEST_LIMITS.outputWindow);
  await link.channel?.freeze(5_000);
  const starting = startProcess(processes, attachableSpec('seq 1000000'));
  await sleep(50);
  processes.releaseClients();
  process.detach();
  processes.acceptAgain();
  await link.channel?.thaw();
  await starting;
  await waitFor(
    'both ends',
    async () => {
      const records = (await link.channel?.list()) ?? [];
      const ended = records.filter(({ flags }) => (flags & PROCESS_FLAGS.exited) !== 0);
      return ended.length === 2;
    },
    20_000,
  );
  const again = await attachClient(processes, client.processId, 0);
  await waitFor('the exit', async () => again.exit);
  t.is(again.exit?.cursor, 6_888_896);
});

test('input beyond what may wait for a process that does not read is refused, not dropped', async (t) => {
  await using fixture = await startProcesses();
  const { processes } = fixture;
  const client = await startProcess(processes, attachableSpec('sleep 1000'));
  const writing = Array.from({ length: 6 }, async () => client.process?.write(Buffer.alloc(MiB)));
  const [, ...rest] = writing;
  await t.throwsAsync(Promise.all(rest), { message: /does not read its input/u });
  await processes.kill(client.processId);
  await waitFor('the exit', async () => client.exit !== undefined);
  await Promise.allSettled(writing);
});
