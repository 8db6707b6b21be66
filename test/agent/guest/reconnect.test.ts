/*
 * Hosts come and go at any byte. Goal: no byte of output or input is lost or doubled, and every new
 * host is understood. Method: a port between host and guest that cuts connections where it is told,
 * as the port of a virtual machine can.
 */
import { createHash, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import * as fc from '../../helpers/fast-check.ts';
import { GuestChannel } from '../../../agent/machines/guest-link/guest-channel.ts';
import { GuestUnavailableError } from '../../../agent/machines/guest-link/guest-errors.ts';
import {
  encodeHostFrame,
  GUEST_LIMITS,
  GUEST_PROTOCOL_VERSION,
  PROCESS_FLAGS,
} from '../../../agent/machines/guest-link/guest-protocol.ts';
import {
  Collected,
  guestBuilds,
  GuestPort,
  guestSettings,
  processSpec,
  TestGuest,
} from '../../helpers/guest.ts';
import { waitFor } from '../../helpers/wait.ts';
import { isFull } from '../../helpers/full.ts';

const SIGKILL = 9;
/** Longer than a busy machine keeps this host from talking, which pings more rarely. */
const SILENCE_MS = 1500;
/** The guest tells how long ago a process ended, and the host subtracts that from its own clock. */
const CLOCK_ERROR_MS = 500;

const hello = (): Buffer =>
  Buffer.concat([
    Buffer.alloc(1),
    encodeHostFrame({
      type: 'hello',
      request: 0,
      version: GUEST_PROTOCOL_VERSION,
      epoch: randomUUID(),
    }),
  ]);

const stdinFrame = (length: number): Buffer =>
  encodeHostFrame({
    type: 'stdin',
    request: 0,
    id: randomUUID(),
    offset: 0,
    bytes: Buffer.alloc(length, 7),
  });

for (const build of guestBuilds) {
  test(`${build.name}: a handshake cut at every byte is followed by one that works`, async (t) => {
    await using guest = await TestGuest.start({ build });
    const port = new GuestPort(guest.socket);
    const instances = new Set<string>();
    for (let cut = 0; cut <= hello().length; cut += 1) {
      const broken = port.connect(cut);
      broken.write(hello());
      await new Promise(setImmediate);
      port.cut();
      broken.destroy();
      const { channel } = await GuestChannel.open(port.connect());
      await channel.ping();
      instances.add(channel.instance);
      channel.close();
    }
    t.is(instances.size, 1);
  });

  test(`${build.name}: the longest frame cut anywhere swallows no hello`, async (t) => {
    await using guest = await TestGuest.start({ build });
    const port = new GuestPort(guest.socket);
    const frame = stdinFrame(GUEST_LIMITS.payloadMax);
    const property = fc.asyncProperty(fc.nat(frame.length), async (cut) => {
      guest.socket.write(frame.subarray(0, cut));
      const { channel } = await GuestChannel.open(port.connect());
      await channel.ping();
      channel.close();
    });
    await fc.assert(property, { numRuns: isFull ? 200 : 40 });
    t.pass();
  });

  test(`${build.name}: a second hello of the same epoch changes nothing`, async (t) => {
    await using guest = await TestGuest.start({ build });
    const port = new GuestPort(guest.socket);
    const stream = port.connect();
    const write = stream.write.bind(stream) as (bytes: Buffer) => boolean;
    stream.write = ((bytes: Buffer) => write(bytes) && write(bytes)) as typeof stream.write;
    const opening = GuestChannel.open(stream);
    stream.write = write as typeof stream.write;
    const { channel } = await opening;
    await channel.ping();
    channel.close();
    t.pass();
  });

  test(`${build.name}: connections that break at random lose and double nothing`, async (t) => {
    await using guest = await TestGuest.start({ build });
    const port = new GuestPort(guest.socket);
    const first = await GuestChannel.open(port.connect());
    await first.channel.configure(guestSettings());
    const spec = processSpec('while read -r n; do seq "$n" "$((n + 4999))"; done', { stdin: true });
    await first.channel.start({ ...spec, isFollowed: false });
    first.channel.close();
    const input = Array.from({ length: 60 }, (_, index) => `${1 + index * 5000}\n`).join('');
    const output = createHash('sha256');
    let cursor = 0;
    let exit: { end: number } | undefined;
    let rounds = 0;
    const random = fc.sample(fc.integer({ min: 200, max: 90_000 }), { numRuns: 1000, seed: 7 });
    while (exit === undefined || cursor < exit.end) {
      rounds += 1;
      const budget = random[rounds] ?? 50_000;
      const { channel, processes } = await GuestChannel.open(port.connect());
      const record = processes.find(({ id }) => id === spec.id);
      if (record === undefined) throw new Error('the process is gone');
      if ((record.flags & PROCESS_FLAGS.exited) !== 0) exit = { end: record.end };
      let seen = 0;
      const broken = new Promise<void>((resolve) => {
        channel.on('closed', () => resolve());
        channel.on('exited', (ended) => (exit = ended));
        channel.on('output', ({ offset, bytes }) => {
          t.is(offset, cursor);
          output.update(bytes);
          cursor += bytes.length;
          seen += bytes.length;
          channel.acknowledge(spec.id, cursor);
          if (seen > budget || (exit !== undefined && cursor >= exit.end)) port.cut();
        });
      });
      const from = cursor;
      t.is(await channel.follow(spec.id, from), from);
      // A little input in each round: what the guest says it has received is not sent again.
      const piece = input.slice(record.stdinReceived, record.stdinReceived + 40);
      const sending =
        piece.length > 0
          ? channel.writeStdin(spec.id, Buffer.from(piece))
          : channel.closeStdin(spec.id);
      await sending.catch(() => undefined); // Cut off in between.
      if (exit !== undefined && cursor >= exit.end) channel.close();
      // A process that has said all it can for its input says nothing more: next round.
      const quiet = waitFor('quiet', async () => {
        const [now] = await channel.list().catch(() => []);
        return now === undefined || (now.end === cursor && now.stdinTaken === now.stdinReceived);
      });
      await Promise.race([broken, quiet]);
      channel.close();
    }
    const expected = Array.from({ length: 300_000 }, (_, index) => `${index + 1}\n`).join('');
    t.is(cursor, expected.length);
    t.is(output.digest('hex'), createHash('sha256').update(expected).digest('hex'));
    t.log(`${rounds} connections`);
    t.true(rounds > 5);
  });

  test(`${build.name}: ends that nobody heard are told by the list, and the id is not taken again`, async (t) => {
    await using guest = await TestGuest.start({ build });
    const port = new GuestPort(guest.socket);
    const first = await GuestChannel.open(port.connect());
    await first.channel.configure(guestSettings());
    const spec = processSpec('sleep 0.2; echo out; exit 7');
    await first.channel.start(spec);
    first.channel.close();
    const ended = await waitFor('the end', async () => {
      const { channel, processes } = await GuestChannel.open(port.connect());
      channel.close();
      const record = processes.find(({ id }) => id === spec.id);
      return record !== undefined && (record.flags & PROCESS_FLAGS.exited) !== 0 && record;
    });
    t.is(ended.status, 7);
    t.is(ended.end, 4);
    const { channel } = await GuestChannel.open(port.connect());
    const collected = new Collected(channel, spec.id);
    await channel.follow(spec.id, 0);
    await collected.until(() => collected.cursor === 4);
    t.is(collected.text, 'out\n');
    await channel.forget(spec.id);
    t.deepEqual(await channel.list(), []);
    channel.close();
  });

  test(`${build.name}: a process ended when it ended, however late a host asks`, async (t) => {
    await using guest = await TestGuest.start({ build });
    const port = new GuestPort(guest.socket);
    const first = await GuestChannel.open(port.connect());
    await first.channel.configure(guestSettings());
    // Its last output is the time of its end: this guest has the host's clock.
    const spec = processSpec('date +%s%3N');
    const collected = new Collected(first.channel, spec.id);
    await first.channel.start(spec);
    await collected.ended();
    const printedAt = Number(collected.text);
    const endedAt = collected.exit?.endedAt ?? 0;
    t.true(endedAt > printedAt - CLOCK_ERROR_MS && endedAt < Date.now() + CLOCK_ERROR_MS);
    first.channel.close();
    await sleep(1500);
    const { channel, processes } = await GuestChannel.open(port.connect());
    const record = processes.find(({ id }) => id === spec.id);
    t.true(Math.abs((record?.endedAt ?? 0) - endedAt) < CLOCK_ERROR_MS);
    channel.close();
  });

  test(`${build.name}: output of a command waits for the next host, however late it comes`, async (t) => {
    await using guest = await TestGuest.start({ build, args: ['--silence', String(SILENCE_MS)] });
    const port = new GuestPort(guest.socket);
    const first = await GuestChannel.open(port.connect());
    await first.channel.configure(guestSettings());
    const spec = processSpec('head -c 10000000 /dev/zero');
    await first.channel.start(spec);
    first.channel.close();
    await sleep(SILENCE_MS + 200);
    const { channel } = await GuestChannel.open(port.connect());
    const collected = new Collected(channel, spec.id);
    t.is(await channel.follow(spec.id, 0), 0);
    await collected.ended();
    t.is(collected.exit?.end, 10_000_000);
    t.is(collected.of(1).length, 10_000_000);
    channel.close();
  });

  test(`${build.name}: a session’s process does not wait for a host that is gone, and keeps the newest`, async (t) => {
    await using guest = await TestGuest.start({ build, args: ['--silence', String(SILENCE_MS)] });
    const port = new GuestPort(guest.socket);
    const first = await GuestChannel.open(port.connect());
    await first.channel.configure(guestSettings());
    const spec = processSpec('seq 1000000', { isAttachable: true });
    const end = 6_888_896;
    await first.channel.start(spec);
    first.channel.close();
    const ended = await waitFor('the end', async () => {
      const { channel, processes } = await GuestChannel.open(port.connect());
      channel.close();
      await sleep(SILENCE_MS + 100);
      return processes.find((record) => (record.flags & PROCESS_FLAGS.exited) !== 0);
    });
    t.is(ended.end, end);
    const { channel } = await GuestChannel.open(port.connect());
    const collected = new Collected(channel, spec.id);
    const from = await channel.follow(spec.id, 0);
    t.is(from, end - GUEST_LIMITS.ringMax);
    await collected.until(() => collected.cursor === end);
    t.true(collected.text.endsWith('999999\n1000000\n'));
    channel.close();
  });

  test(`${build.name}: a host that was taken for gone begins anew when it comes back`, async (t) => {
    await using guest = await TestGuest.start({ build, args: ['--silence', String(SILENCE_MS)] });
    const { channel } = await GuestChannel.open(guest.socket);
    await channel.configure(guestSettings());
    await sleep(SILENCE_MS + 200);
    // The request is not answered, so the host opens a new epoch.
    await t.throwsAsync(channel.ping(300), { instanceOf: GuestUnavailableError });
    channel.close();
  });

  test(`${build.name}: a host that goes in the middle of a start leaves a process or none`, async (t) => {
    await using guest = await TestGuest.start({ build });
    const port = new GuestPort(guest.socket);
    const first = await GuestChannel.open(port.connect());
    await first.channel.configure(guestSettings());
    first.channel.close();
    for (const cut of [80, 100, 120, 140, 160, 180, 200, 100_000]) {
      const { channel } = await GuestChannel.open(port.connect(cut));
      const spec = processSpec('echo ran; sleep 1000');
      const started = channel.start(spec).catch(() => undefined);
      await Promise.race([started, sleep(300)]);
      channel.close();
      const next = await GuestChannel.open(port.connect());
      const mine = next.processes.filter(({ id }) => id === spec.id);
      t.true(mine.length <= 1);
      for (const { id } of mine) await next.channel.signal(id, SIGKILL);
      if (cut === 80) t.is(mine.length, 0);
      if (cut === 100_000) t.is(mine.length, 1);
      next.channel.close();
    }
  });
}
