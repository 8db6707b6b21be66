/* Bytes in and out of processes: windows, back-pressure, what is kept and what is dropped. */
import { createHash, randomBytes } from 'node:crypto';
import test from 'ava';
import { GUEST_LIMITS, PROCESS_FLAGS } from '../../../agent/machines/guest-link/guest-protocol.ts';
import {
  collect,
  Collected,
  guestBuilds,
  processSpec,
  startConfigured,
} from '../../helpers/guest.ts';
import { waitFor } from '../../helpers/wait.ts';
import { MiB } from '../../../shared/units.ts';

const SIGINT = 2;

const plainBytes = (build: { name: string }, bytes: number): number =>
  build.name === 'guest' ? bytes : bytes * 20; // A sanitizer's own memory is not what is measured.

for (const build of guestBuilds) {
  test(`${build.name}: with a handful of processes it has at most 2 MiB resident`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel, guest } = started;
    for (let index = 0; index < 5; index += 1) {
      await channel.start(processSpec('echo something; sleep 1000'));
    }
    const bytes = await guest.memoryBytes('VmRSS');
    t.log(`resident: ${bytes / 1024} KiB`);
    t.true(bytes <= plainBytes(build, 2 * MiB));
  });

  test(`${build.name}: 100 MiB reach a slow reader, and memory stays bounded`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel, guest } = started;
    const spec = processSpec('head -c 104857600 /dev/zero | tr "\\0" "a"; printf end >&2');
    let cursor = 0;
    const counted = { a: 0, other: '' };
    const collected = new Collected(channel, spec.id, { acknowledge: false });
    channel.on('output', ({ stream, bytes }) => {
      if (stream === 1) counted.a += bytes.length;
      else counted.other += bytes.toString();
      collected.pieces.length = 0;
    });
    await channel.start(spec);
    while (collected.exit === undefined || cursor < collected.exit.end) {
      if (collected.cursor === cursor)
        await collected.until(() => collected.cursor > cursor || collected.exit?.end === cursor);
      await channel.ping(); // Slow: nothing is acknowledged before a round trip.
      cursor = collected.cursor;
      channel.acknowledge(spec.id, cursor);
    }
    t.deepEqual(counted, { a: 100 * MiB, other: 'end' });
    const peak = await guest.memoryBytes('VmHWM');
    t.log(`most resident: ${peak / 1024} KiB`);
    t.true(peak <= plainBytes(build, 2 * MiB + GUEST_LIMITS.ringMax * 1.125));
  });

  test(`${build.name}: without an acknowledgement no more than the window comes, and the process waits`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel } = started;
    const spec = processSpec('head -c 8388608 /dev/zero; echo done >&2');
    const collected = new Collected(channel, spec.id, { acknowledge: false });
    await channel.start(spec);
    const full = await waitFor('a full ring', async () => {
      const [record] = await channel.list();
      return record !== undefined && record.end - record.oldest === GUEST_LIMITS.ringMax && record;
    });
    await collected.until(() => collected.cursor >= GUEST_LIMITS.outputWindow);
    await channel.ping();
    t.is(collected.cursor, GUEST_LIMITS.outputWindow);
    t.is(full.end, GUEST_LIMITS.ringMax);
    t.is(full.flags & PROCESS_FLAGS.exited, 0);
    channel.on('output', ({ processId, offset, bytes }) =>
      channel.acknowledge(processId, offset + bytes.length),
    );
    channel.acknowledge(spec.id, collected.cursor);
    await collected.ended();
    t.is(collected.exit?.end, 8 * MiB + 5);
    t.is(collected.of(2).toString(), 'done\n');
  });

  test(`${build.name}: what nobody wants never blocks, and the last of it can be had`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel } = started;
    const script = 'head -c 20000000 /dev/zero; printf last; echo error >&2';
    const spec = processSpec(script, { isFollowed: false });
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await collected.until(() => collected.exit !== undefined);
    t.is(collected.exit?.end, 20_000_010);
    t.is(collected.cursor, 0);
    const from = await channel.follow(spec.id, 0);
    t.is(from, 20_000_010 - GUEST_LIMITS.ringMax);
    await collected.ended();
    t.is(collected.of(1).length, GUEST_LIMITS.ringMax - 6);
    t.is(collected.of(1).subarray(-4).toString(), 'last');
    t.is(collected.of(2).toString(), 'error\n');
  });

  test(`${build.name}: a process that nobody wants any more goes on by itself`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel } = started;
    const spec = processSpec('head -c 8388608 /dev/zero');
    const collected = new Collected(channel, spec.id, { acknowledge: false });
    await channel.start(spec);
    await collected.until(() => collected.cursor === GUEST_LIMITS.outputWindow);
    await channel.unfollow(spec.id);
    await collected.until(() => collected.exit !== undefined);
    t.is(collected.exit?.end, 8 * MiB);
  });

  test(`${build.name}: streams that alternate byte by byte keep their order`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel } = started;
    const script = 'while read x; do if [ $x = 1 ]; then printf o; else printf e >&2; fi; done';
    const spec = processSpec(script, { stdin: true });
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    for (let index = 0; index < 100; index += 1) {
      await channel.writeStdin(spec.id, Buffer.from(index % 3 === 0 ? '2\n' : '1\n'));
      await collected.until(() => collected.cursor === index + 1);
    }
    await channel.closeStdin(spec.id);
    await collected.ended();
    t.is(collected.text, 'eoo'.repeat(34).slice(0, 100));
    // Once more from the ring, where the bytes of each run lie together.
    const again = new Collected(channel, spec.id);
    await channel.follow(spec.id, 0);
    await again.until(() => again.cursor === 100);
    t.is(again.pieces.length, 67);
  });

  test(`${build.name}: 10 MiB through cat, with both directions at their bounds`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel, guest } = started;
    const bytes = randomBytes(10 * MiB);
    const spec = processSpec('cat; echo end >&2', { stdin: true });
    const hash = createHash('sha256');
    const collected = new Collected(channel, spec.id);
    channel.on('output', ({ stream, bytes: piece }) => {
      if (stream === 1) hash.update(piece);
    });
    await channel.start(spec);
    await Promise.all([channel.writeStdin(spec.id, bytes), channel.closeStdin(spec.id)]);
    await collected.ended();
    t.is(hash.digest('hex'), createHash('sha256').update(bytes).digest('hex'));
    t.is(collected.of(2).toString(), 'end\n');
    t.true((await guest.memoryBytes('VmHWM')) <= plainBytes(build, 8 * MiB));
  });

  test(`${build.name}: input is taken no faster than the process reads`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel } = started;
    const spec = processSpec('trap "exec wc -c" INT; echo up; while :; do sleep 0.01; done', {
      stdin: true,
    });
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await collected.until(() => collected.text === 'up\n');
    let isWritten = false;
    const written = channel.writeStdin(spec.id, Buffer.alloc(MiB)).then(() => (isWritten = true));
    const record = await waitFor('a full pipe', async () => {
      const [only] = await channel.list();
      return only !== undefined && only.stdinReceived - only.stdinTaken > 60_000 && only;
    });
    t.true(record.stdinReceived <= 2 * GUEST_LIMITS.inputWindow);
    t.false(isWritten);
    await channel.signal(spec.id, SIGINT);
    await written;
    await channel.closeStdin(spec.id);
    await collected.ended();
    t.is(collected.text, `up\n${MiB}\n`);
  });

  test(`${build.name}: input for who does not read it, or has ended, goes nowhere and blocks nobody`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel } = started;
    for (const command of ['exec <&-; sleep 0.2', 'exit 0']) {
      const spec = processSpec(command, { stdin: true });
      const collected = new Collected(channel, spec.id);
      await channel.start(spec);
      await channel.writeStdin(spec.id, Buffer.alloc(MiB));
      await collected.ended();
      await channel.writeStdin(spec.id, Buffer.alloc(MiB));
      await channel.closeStdin(spec.id);
      t.is(collected.exit?.exitCode, 0);
    }
  });

  test(`${build.name}: without stdin a process reads its end at once`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel } = started;
    t.is((await collect(channel, processSpec('cat; echo end'))).text, 'end\n');
  });

  test(`${build.name}: rings share a budget, and none loses what was not acknowledged`, async (t) => {
    await using started = await startConfigured({ build, args: ['--rings', String(MiB)] });
    const { channel } = started;
    const specs = Array.from({ length: 4 }, () => processSpec('head -c 3000000 /dev/zero'));
    const all = specs.map(({ id }) => new Collected(channel, id, { acknowledge: false }));
    for (const spec of specs) await channel.start(spec);
    await waitFor('full rings', async () => (await channel.stats()).ringBytes >= MiB);
    await waitFor('what each may always keep', async () => {
      const records = await channel.list();
      return records.every(({ end }) => end >= GUEST_LIMITS.ringMin);
    });
    t.true((await channel.stats()).ringBytes <= 4 * GUEST_LIMITS.ringMin);
    channel.on('output', ({ processId, offset, bytes }) =>
      channel.acknowledge(processId, offset + bytes.length),
    );
    for (const [index, collected] of all.entries()) {
      channel.acknowledge(specs[index]?.id ?? '', collected.cursor);
      await collected.ended();
      t.is(collected.of(1).length, 3_000_000);
    }
  });

  test(`${build.name}: what a session’s ended process put out makes room for what others do`, async (t) => {
    await using started = await startConfigured({ build, args: ['--rings', String(4 * MiB)] });
    const { channel } = started;
    const evicted: string[] = [];
    channel.on('evicted', (id) => evicted.push(id));
    const session = { isAttachable: true, isFollowed: false };
    const run = async (megabytes: number): Promise<string> => {
      const spec = processSpec(`head -c ${megabytes * MiB} /dev/zero`, session);
      const collected = new Collected(channel, spec.id);
      await channel.start(spec);
      await collected.until(() => collected.exit !== undefined);
      return spec.id;
    };
    const first = await run(2);
    const second = await run(1);
    t.deepEqual(evicted, []);
    await run(2);
    t.deepEqual(evicted, [first]);
    t.true((await channel.list()).some(({ id }) => id === second));
    t.true((await channel.stats()).ringBytes <= 4 * MiB);
  });
}
