/* Processes of the guest agent: how they start, what they put out, how they end. */
import { randomBytes, randomUUID } from 'node:crypto';
import test from 'ava';
import { GuestFailure } from '../../../agent/machines/guest-link/guest-errors.ts';
import { endOfProcess } from '../../../agent/machines/guest-link/process-end.ts';
import { GUEST_LIMITS } from '../../../agent/machines/guest-link/guest-protocol.ts';
import {
  collect,
  Collected,
  guestBuilds,
  processSpec,
  startConfigured,
  TestGuest,
} from '../../helpers/guest.ts';
import { GuestChannel } from '../../../agent/machines/guest-link/guest-channel.ts';
import { waitFor } from '../../helpers/wait.ts';

const SIGKILL = 9;
const SIGTERM = 15;

const shared = await Promise.all(
  guestBuilds.map(async (build) => ({
    build,
    started: await startConfigured({
      build,
      settings: { environment: { SHARED: 'sandbox', OVERRIDDEN: 'sandbox' }, directory: '/usr' },
    }),
  })),
);
test.after.always(() => Promise.all(shared.map(({ started }) => started[Symbol.asyncDispose]())));

for (const {
  build,
  started: { channel },
} of shared) {
  test(`${build.name}: environment, directory and streams of a process`, async (t) => {
    const spec = processSpec('echo "$SHARED $OVERRIDDEN $OWN $HOME ${TERM-none}"; pwd; cat', {
      environment: { OVERRIDDEN: 'process', OWN: 'a b\nc' },
    });
    t.is((await collect(channel, spec)).text, 'sandbox process a b\nc /root none\n/usr\n');
    const elsewhere = await collect(channel, processSpec('pwd', { directory: '/usr/bin' }));
    t.is(elsewhere.text, '/usr/bin\n');
  });

  test(`${build.name}: both streams have one counter and keep their order`, async (t) => {
    const spec = processSpec('printf 123456; sleep 0.1; printf err >&2; sleep 0.1; printf end');
    const { pieces, exit } = await collect(channel, spec);
    t.deepEqual(
      pieces.map(({ stream, offset, bytes }) => [stream, offset, bytes.toString()]),
      [
        [1, 0, '123456'],
        [2, 6, 'err'],
        [1, 9, 'end'],
      ],
    );
    t.is(exit?.end, 12);
  });

  test(`${build.name}: binary output comes byte for byte`, async (t) => {
    const bytes = randomBytes(300_000);
    const spec = processSpec('cat', { stdin: true });
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await channel.writeStdin(spec.id, bytes);
    await channel.closeStdin(spec.id);
    await collected.ended();
    t.deepEqual(collected.of(1), bytes);
  });

  for (const [command, exitCode, signal] of [
    ['exit 0', 0, undefined],
    ['exit 255', 255, undefined],
    ['kill -TERM $$', undefined, SIGTERM],
    ['kill -KILL $$', undefined, SIGKILL],
    ['nosuchprogram 2>/dev/null', 127, undefined],
    ['-x 2>/dev/null; exit 7', 7, undefined],
    ['+x 2>/dev/null; exit 7', 7, undefined],
  ] as const) {
    test(`${build.name}: the end of ${command}`, async (t) => {
      const { exit } = await collect(channel, processSpec(command));
      t.is(exit?.exitCode, exitCode);
      t.is(exit?.signal, signal);
    });
  }

  for (const length of [122_880, 122_881, GUEST_LIMITS.commandMax]) {
    test(`${build.name}: a command of ${length} bytes`, async (t) => {
      const { text, exit } = await collect(
        channel,
        processSpec('ls /proc/self/fd | wc -l; echo whole #'.padEnd(length, 'x')),
      );
      t.is(text, '4\nwhole\n'); // Three streams and the directory that is listed: nothing of ours.
      t.is(exit?.exitCode, 0);
    });
  }

  test(`${build.name}: many of the longest commands at once`, async (t) => {
    const command = 'echo whole #'.padEnd(GUEST_LIMITS.commandMax, 'x');
    const all = await Promise.all(
      Array.from({ length: 24 }, () => collect(channel, processSpec(command))),
    );
    t.true(all.every(({ text }) => text === 'whole\n'));
  });

  test(`${build.name}: a command or environment beyond its bound is refused`, async (t) => {
    const long = processSpec('#'.padEnd(GUEST_LIMITS.commandMax + 1, 'x'));
    await t.throwsAsync(channel.start(long), { instanceOf: GuestFailure, message: /invalid/u });
    const environment = { A: 'x'.repeat(GUEST_LIMITS.environmentMax) };
    const wide = processSpec('true', { environment });
    await t.throwsAsync(channel.start(wide), { message: /invalid/u });
    t.is((await collect(channel, processSpec('echo next', { id: long.id }))).text, 'next\n');
  });

  test(`${build.name}: a directory that is missing is told, and nothing runs`, async (t) => {
    const spec = processSpec('echo ran', { directory: '/nosuch' });
    await t.throwsAsync(channel.start(spec), {
      message: /^guest refused: system directory ENOENT: /,
    });
    t.false((await channel.list()).some(({ id }) => id === spec.id));
  });

  test(`${build.name}: signals reach the process's group`, async (t) => {
    const spec = processSpec('trap "echo got; exit 5" TERM; echo up; sleep 1000 & wait');
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await collected.until(() => collected.text === 'up\n');
    await channel.signal(spec.id, SIGTERM);
    await collected.ended();
    t.is(collected.text, 'up\ngot\n');
    t.is(collected.exit?.exitCode, 5);
    await channel.signal(spec.id, SIGKILL); // The process has ended: nothing happens.
  });

  test(`${build.name}: who ignores SIGTERM is killed with all of its group`, async (t) => {
    const spec = processSpec('trap "" TERM; echo up; sleep 1000 & sleep 1000');
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await collected.until(() => collected.text === 'up\n');
    await channel.signal(spec.id, SIGTERM);
    await channel.ping();
    t.is(collected.exit, undefined);
    await channel.signal(spec.id, SIGKILL);
    await collected.ended();
    t.is(collected.exit?.signal, SIGKILL);
  });

  test(`${build.name}: a double-forked child that holds the output delays the end by no more than its second`, async (t) => {
    const mark = `BERTH_MARK=${randomUUID()}`;
    const spec = processSpec(
      `echo out; (${mark} setsid sh -c 'until test -e go; do sleep 0.1; done; echo late; touch done; sleep 1000' & )`,
      { directory: '/run' },
    );
    const collected = await collect(channel, spec);
    t.is(collected.text, 'out\n');
    t.is(collected.exit?.exitCode, 0);
    await channel.forget(spec.id);
    await collect(channel, processSpec('touch /run/go'));
    // The child writes after its shell was reported and forgotten, and survives that.
    await waitFor('the child', async () => {
      const { exit } = await collect(channel, processSpec('test -e /run/done'));
      return exit?.exitCode === 0;
    });
    t.pass();
  });

  test(`${build.name}: orphans are reaped`, async (t) => {
    await collect(channel, processSpec('for i in 1 2 3 4 5 6 7 8; do (sleep 0.05 &); done'));
    await waitFor('orphans', async () => {
      const { text } = await collect(
        channel,
        processSpec("grep -l '^State:.Z' /proc/[0-9]*/status"),
      );
      return text === '';
    });
    t.pass();
  });

  test(`${build.name}: ids are taken once, and unknown ones refused`, async (t) => {
    const spec = processSpec('sleep 1000');
    await channel.start(spec);
    await t.throwsAsync(channel.start(spec), { instanceOf: RangeError });
    await t.throwsAsync(channel.forget(spec.id), { message: /busy/u });
    await t.throwsAsync(channel.signal(randomUUID(), SIGTERM), { message: /unknownProcess/u });
    const gone = new Collected(channel, spec.id);
    await channel.signal(spec.id, SIGKILL);
    await gone.ended();
    await channel.forget(spec.id);
    await t.throwsAsync(channel.signal(spec.id, SIGTERM), { message: /unknownProcess/u });
  });

  test(`${build.name}: what is kept comes again, from any offset`, async (t) => {
    const spec = processSpec('printf 12345; sleep 0.1; printf abc >&2');
    await collect(channel, spec);
    const again = async (offset: number): Promise<unknown[]> => {
      const collected = new Collected(channel, spec.id);
      t.is(await channel.follow(spec.id, offset), offset);
      await collected.until(() => offset === 8 || collected.cursor === 8);
      return collected.pieces.map((piece) => [piece.stream, piece.offset, piece.bytes.toString()]);
    };
    t.deepEqual(await again(0), [
      [1, 0, '12345'],
      [2, 5, 'abc'],
    ]);
    t.deepEqual(await again(3), [
      [1, 3, '45'],
      [2, 5, 'abc'],
    ]);
    t.deepEqual(await again(5), [[2, 5, 'abc']]);
    t.deepEqual(await again(8), []);
  });

  test(`${build.name}: a storm of forks does not keep the agent from its work`, async (t) => {
    await using started = await startConfigured({ build });
    const orphans = 'for i in $(seq 100); do while :; do (: &); done & done; wait';
    const { exit } = await collect(started.channel, processSpec(orphans, { timeoutMs: 1000 }));
    t.is(exit?.cause, 'timed_out');
  });

  test(`${build.name}: a process whose time is up is killed, and its exit says so`, async (t) => {
    const { exit } = await collect(channel, processSpec('echo a; sleep 1000', { timeoutMs: 2000 }));
    t.like(exit, { cause: 'timed_out', signal: SIGKILL, exitCode: undefined, end: 2 });
    const inTime = await collect(channel, processSpec('sleep 0.1', { timeoutMs: 60_000 }));
    t.like(inTime.exit, { cause: undefined, exitCode: 0 });
  });

  test(`${build.name}: the exit of a process that was killed says so`, async (t) => {
    const spec = processSpec('trap "" TERM; echo ready; sleep 1000 & wait');
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await collected.until(() => collected.cursor > 0);
    await channel.kill(spec.id);
    await collected.ended();
    t.like(collected.exit, { cause: 'killed', signal: SIGKILL });
    const record = (await channel.list()).find(({ id }) => id === spec.id);
    t.is(endOfProcess(record ?? t.fail()).cause, 'killed');
    await channel.kill(spec.id); // Again, when it is no more: nothing.
    await t.throwsAsync(channel.kill(randomUUID()), { message: /unknownProcess/u });
  });

  test(`${build.name}: a kill that comes after the end changes nothing`, async (t) => {
    const spec = processSpec('exit 3');
    await collect(channel, spec);
    await channel.kill(spec.id);
    const record = (await channel.list()).find(({ id }) => id === spec.id);
    t.like(endOfProcess(record ?? t.fail()), { cause: undefined, exitCode: 3 });
  });

  test(`${build.name}: figures of the guest`, async (t) => {
    await collect(channel, processSpec('true'));
    const figures = await channel.stats();
    t.true(figures.memoryBytes > figures.availableBytes && figures.availableBytes > 0);
    t.true(figures.processes > 0);
  });

  test(`${build.name}: before it is configured nothing can be started`, async (t) => {
    await using guest = await TestGuest.start({ build });
    const opened = await GuestChannel.open(guest.socket);
    await t.throwsAsync(opened.channel.start(processSpec('true')), { message: /notConfigured/u });
    opened.channel.close();
  });

  test(`${build.name}: a missing shell is told`, async (t) => {
    // All that is left there is the program that runs the agent, such as an emulator.
    const prepare = [
      'mkdir /run/bin && cp "$(command -v "$0")" /run/bin',
      'mount --bind /run/bin "$(readlink -f /bin)"',
    ];
    // The agent is static, and the shell that executes it is in memory already.
    await using started = await startConfigured({ build, prepare });
    await t.throwsAsync(started.channel.start(processSpec('true')), {
      message: /^guest refused: system shell ENOENT: its image has no \/bin\/sh/u,
    });
    await started.channel.ping();
  });

  test(`${build.name}: 1000 processes are kept, one more is refused`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel: own, guest } = started;
    const specs = Array.from({ length: 1000 }, (_, index) => processSpec(`echo ${index}`));
    for (let at = 0; at < specs.length; at += 20) {
      await Promise.all(specs.slice(at, at + 20).map((spec) => collect(own, spec)));
    }
    await t.throwsAsync(own.start(processSpec('true')), { instanceOf: RangeError });
    const records = await own.list();
    t.is(new Set(records.map(({ id }) => id)).size, 1000);
    const [some] = specs.slice(700);
    const kept = new Collected(own, some?.id ?? '');
    await own.follow(some?.id ?? '', 0);
    await kept.until(() => kept.cursor === 4);
    t.is(kept.text, '700\n');
    t.log(`resident with 1000 retained: ${(await guest.memoryBytes('VmRSS')) / 1024} KiB`);
    await own.forget(some?.id ?? '');
    t.is((await collect(own, processSpec('echo again'))).text, 'again\n');
  });

  test(`${build.name}: processes of sessions make room for new ones when they have ended`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel: own } = started;
    const evicted: string[] = [];
    own.on('evicted', (id) => evicted.push(id));
    const change = { isAttachable: true, isFollowed: false };
    const specs = Array.from({ length: 1000 }, () => processSpec('true', change));
    for (let at = 0; at < specs.length; at += 20) {
      await Promise.all(
        specs.slice(at, at + 20).map(async ({ id, ...spec }) => {
          const collected = new Collected(own, id);
          await own.start({ id, ...spec });
          await collected.until(() => collected.exit !== undefined);
        }),
      );
    }
    const [first] = specs;
    await own.follow(first?.id ?? '', 0); // Output that a client reads is not taken from it.
    t.is((await collect(own, processSpec('echo new'))).text, 'new\n');
    const kept = new Set((await own.list()).map(({ id }) => id));
    t.is(kept.size, 1000);
    t.true(kept.has(first?.id ?? ''));
    t.is(evicted.length, 1);
    t.true(specs.slice(1, 40).some(({ id }) => id === evicted[0]));
  });

  test(`${build.name}: a session’s process is evicted some time after its end`, async (t) => {
    await using started = await startConfigured({ build, args: ['--retain', '300'] });
    const { channel: own } = started;
    const session = processSpec('true', { isAttachable: true });
    const other = processSpec('true');
    const evicted = new Promise((resolve) => {
      own.once('evicted', resolve);
    });
    await collect(own, other);
    await collect(own, session);
    await own.unfollow(session.id);
    t.is(await evicted, session.id);
    t.deepEqual(
      (await own.list()).map(({ id }) => id),
      [other.id],
    );
    await t.throwsAsync(own.follow(session.id, 0), { instanceOf: RangeError });
  });
}
