/*
 * Clients and guests at their worst, and channels that break at the worst moment, on a real guest
 * agent. Goal: no input or output is lost, nothing waits for ever, and nothing grows.
 */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { setImmediate, setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { GUEST_LIMITS } from '../../../../agent/machines/guest-link/guest-protocol.ts';
import { MiB } from '../../../../shared/units.ts';
import { startProcesses } from '../../../helpers/guest-processes.ts';
import { attachableSpec, startProcess, TestClient } from '../../../helpers/process-client.ts';
import { waitFor } from '../../../helpers/wait.ts';

test('clients that come and go do not open the window of one that takes nothing', async (t) => {
  await using fixture = await startProcesses();
  const { processes } = fixture;
  const slow = new TestClient();
  // The client acknowledges nothing.
  await processes.start(attachableSpec('seq 1000000'), slow, slow.started);
  await waitFor('the window', async () => slow.cursor === GUEST_LIMITS.outputWindow);
  for (let round = 0; round < 5; round += 1) {
    const other = new TestClient(slow.cursor);
    other.process = await processes.attach(slow.processId, slow.cursor, other, () => undefined);
    await fixture.link.channel?.ping();
    await sleep(30);
    other.process.detach();
  }
  t.is(slow.cursor, GUEST_LIMITS.outputWindow);
});

test('short pieces of output are bounded in number while nobody takes them', async (t) => {
  await using fixture = await startProcesses();
  const { processes } = fixture;
  const slow = new TestClient();
  const process = await processes.start(attachableSpec('cat'), slow, slow.started);
  for (let count = 1; count <= GUEST_LIMITS.outputFrames; count += 1) {
    await process.write(Buffer.from('x'));
    while (slow.cursor < count) await setImmediate();
  }
  await process.write(Buffer.from('y'));
  await fixture.link.channel?.ping();
  await sleep(50);
  t.is(slow.pieces.length, GUEST_LIMITS.outputFrames);
  slow.process = process;
  process.acknowledge(slow.cursor);
  await process.closeInput();
  await waitFor('the exit', async () => slow.exit !== undefined);
  t.false(slow.hasGap);
  t.true(slow.bytes.toString().endsWith('xy'));
});

test('the end of input stays behind input that was lost with a channel', async (t) => {
  let toGuestBytesMax = Infinity;
  await using fixture = await startProcesses([], 10, (port) => port.connect(toGuestBytesMax));
  const { port, processes } = fixture;
  const client = await startProcess(processes, attachableSpec('read go; cat'));
  // The next channel takes its first bytes to the guest and loses the others.
  toGuestBytesMax = 1500;
  port.cut();
  await once(fixture.link, 'opened');
  toGuestBytesMax = Infinity;
  const input = randomBytes(40_000);
  await client.process?.write(Buffer.concat([Buffer.from('go\n'), input]));
  const closing = client.process?.closeInput();
  await sleep(50);
  port.cut();
  await closing;
  await waitFor('the exit', async () => client.exit !== undefined);
  t.is(client.bytes.length, input.length);
  t.true(client.bytes.equals(input));
});

test('input behind the end of input, or for a process that has ended, does not wait', async (t) => {
  await using fixture = await startProcesses();
  const { processes } = fixture;
  const closed = await startProcess(processes, attachableSpec('read go; cat >/dev/null'));
  await closed.process?.write(Buffer.alloc(100_000, 'x'));
  await closed.process?.closeInput();
  const behind = closed.process?.write(Buffer.alloc(MiB));
  await behind;
  await waitFor('the exit', async () => closed.exit !== undefined);
  // A child that outlives the shell holds its input open.
  const left = await startProcess(
    processes,
    attachableSpec('exec 3<&0; sleep 1000 <&3 >/dev/null 2>&1 & exit 0'),
  );
  await left.process?.write(Buffer.alloc(MiB));
  t.is(left.exit?.status, 'completed');
});

test('a client that waits beyond the end disturbs no channel when the process ends', async (t) => {
  await using fixture = await startProcesses();
  const { processes, link } = fixture;
  const client = await startProcess(processes, attachableSpec('read x'));
  client.process?.detach();
  const { channel } = link;
  const beyond = new TestClient(1e12);
  beyond.process = await processes.attach(client.processId, 1e12, beyond, () => undefined);
  await beyond.process.write(Buffer.from('\n'));
  await waitFor('the exit', async () => beyond.exit !== undefined);
  t.like(beyond.exit, { status: 'completed', cursor: 0 });
  t.is(link.channel, channel);
});

test('a machine that ends under a start refuses it, without an exit', async (t) => {
  await using fixture = await startProcesses();
  const { processes, link } = fixture;
  await link.channel?.freeze(5_000);
  const client = new TestClient();
  const starting = processes.start(attachableSpec('true'), client, client.started);
  starting.catch(() => undefined);
  await sleep(50);
  processes.loseAll('cancelled', 'sandbox stopped');
  t.is(client.exit, undefined);
  t.is(client.detachedBy?.code, 'sandbox_not_running');
  link.close();
});

test('a start while the guest is frozen for a fork waits until it goes on', async (t) => {
  await using fixture = await startProcesses();
  const { processes, link } = fixture;
  await link.channel?.freeze(5_000);
  const starting = startProcess(processes, attachableSpec('echo on'));
  await sleep(120);
  await link.channel?.thaw();
  const client = await starting;
  await waitFor('the exit', async () => client.exit !== undefined);
  t.is(client.bytes.toString(), 'on\n');
});

test('more requests than a channel takes at once are asked again, one after the other', async (t) => {
  await using fixture = await startProcesses();
  const { link } = fixture;
  const signal = AbortSignal.timeout(30_000);
  const asked = Array.from({ length: 2_000 }, () => link.call(signal, (channel) => channel.ping()));
  await t.notThrowsAsync(Promise.all(asked));
});

test('input that waits when the sandbox is paused waits no longer', async (t) => {
  await using fixture = await startProcesses();
  const { processes } = fixture;
  const client = await startProcess(processes, attachableSpec('sleep 1000'));
  const writing = client.process?.write(Buffer.alloc(MiB));
  await sleep(50);
  processes.releaseClients();
  processes.disconnect();
  fixture.link.close();
  await t.notThrowsAsync(async () => writing);
});

test('input that clients leave behind is bounded for all processes together', async (t) => {
  await using fixture = await startProcesses([], 2);
  const { processes } = fixture;
  const outcomes: Promise<string>[] = [];
  for (let count = 0; count < 20; count += 1) {
    const client = await startProcess(processes, attachableSpec('sleep 1000'));
    const write = client.process?.write(Buffer.alloc(2 * MiB)) ?? Promise.resolve();
    outcomes.push(
      write.then(
        () => 'written',
        (error: unknown) => (error as { code: string }).code,
      ),
    );
    client.process?.detach();
  }
  // 4 MiB for each of two clients, and 16 MiB: twelve of these.
  processes.disconnect();
  fixture.link.close();
  const told = await Promise.all(outcomes);
  t.is(told.filter((each) => each === 'no_capacity').length, 8);
});
