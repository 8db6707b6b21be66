/* Freezing, by control group where the host has version 2, else by signals; and the orderly end. */
import { randomUUID } from 'node:crypto';
import { mkdir, rmdir, stat } from 'node:fs/promises';
import { once } from 'node:events';
import test from 'ava';
import {
  collect,
  Collected,
  guestBuilds,
  nativeGuestBuilds,
  processSpec,
  startConfigured,
} from '../../helpers/guest.ts';
import { processesMarked } from '../../helpers/host.ts';

const FREEZE_MS = 30_000; // The disks that are synced are this host's, with all that others write.
const SIGKILL = 9;
const SIGSTOP = 19;

async function findCgroup2(): Promise<string | undefined> {
  for (const path of ['/sys/fs/cgroup', '/sys/fs/cgroup/unified']) {
    const found = await stat(`${path}/cgroup.procs`).catch(() => undefined);
    if (found !== undefined) return path;
  }
  return undefined;
}

const cgroup2 = await findCgroup2();
const counting = 'i=0; while :; do i=$((i + 1)); echo $i; sleep 0.01; done';

for (const build of nativeGuestBuilds) {
  for (const way of ['control group', 'signals'] as const) {
    const title = `${build.name}: processes frozen by ${way} stand still, and go on when thawed`;
    if (way === 'control group' && cgroup2 === undefined) {
      test.skip(`${title} (this host has no control groups of version 2)`, () => undefined);
      continue;
    }
    test(title, async (t) => {
      const group = `${cgroup2}/berth-test-${randomUUID()}`;
      if (way === 'control group') {
        await mkdir(group);
        t.teardown(() => rmdir(group));
      }
      const args = way === 'control group' ? ['--group', group] : [];
      {
        await using started = await startConfigured({ build, args });
        const { channel } = started;
        const spec = processSpec(counting);
        const stopped = processSpec('exec sleep 1000');
        const collected = new Collected(channel, spec.id);
        await channel.start(spec);
        const stoppedPid = await channel.start(stopped);
        await channel.signal(stopped.id, SIGSTOP);
        // A process stops only when it is scheduled; until then the freeze takes it for its own.
        const untilStopped = `until grep -q '^State:.T' /proc/${stoppedPid}/status; do :; done`;
        await collect(channel, processSpec(untilStopped));
        await collected.until(() => collected.cursor > 0);
        await channel.freeze(FREEZE_MS);
        await channel.freeze(FREEZE_MS); // The guest is frozen already.
        const { end } = (await channel.list()).find(({ id }) => id === spec.id) ?? { end: -1 };
        await collected.until(() => collected.cursor === end);
        for (let round = 0; round < 20; round += 1) await channel.stats();
        t.is((await channel.list()).find(({ id }) => id === spec.id)?.end, end);
        await t.throwsAsync(channel.start(processSpec('true')), { message: /frozen/u });
        await channel.thaw();
        await collected.until(() => collected.cursor > end);
        const states = await collect(
          channel,
          processSpec("grep -c '^State:.T' /proc/[0-9]*/status"),
        );
        // Processes that had stopped before are not woken.
        t.is(states.text.match(/:1$/gmu)?.length, 1);
        await channel.freeze(FREEZE_MS);
        await channel.signal(spec.id, SIGKILL);
        await channel.thaw();
        await collected.ended();
        t.is(collected.exit?.signal, SIGKILL);
      }
    });
  }

  test(`${build.name}: a freeze needs nothing else to happen`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel } = started;
    let pings = 0;
    const ping = channel.ping.bind(channel);
    channel.ping = () => {
      pings += 1;
      return ping();
    };
    for (let round = 0; round < 20; round += 1) {
      await channel.freeze(FREEZE_MS);
      await channel.thaw();
    }
    t.log(`pings meanwhile: ${pings}`);
    t.true(pings < 20); // Each ping wakes the guest: it must not be what a freeze waits for.
  });

  test(`${build.name}: a frozen guest can be shut down`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel, guest } = started;
    const spec = processSpec('echo up; sleep 1000');
    const collected = new Collected(channel, spec.id);
    await channel.start(spec);
    await collected.until(() => collected.text === 'up\n');
    await channel.freeze(FREEZE_MS);
    await channel.shutdown(5000);
    t.is(await guest.exited, 0);
  });
}

for (const build of guestBuilds) {
  test(`${build.name}: a shutdown asks first, kills who does not listen, and tells every end`, async (t) => {
    await using started = await startConfigured({ build });
    const { channel, guest } = started;
    const polite = processSpec(
      'trap "echo bye; exit 3" TERM; echo up; while :; do sleep 0.01; done',
    );
    const deaf = processSpec('trap "" TERM; echo up; while :; do sleep 0.01; done');
    const both = [polite, deaf].map(({ id }) => new Collected(channel, id));
    const asked = once(channel, 'poweringOff');
    for (const spec of [polite, deaf]) await channel.start(spec);
    for (const each of both) await each.until(() => each.text === 'up\n');
    await channel.shutdown(500);
    t.deepEqual(await asked, [true]);
    await Promise.all(both.map((each) => each.ended()));
    t.regex(both[0]?.text ?? '', /^up\n(?:Terminated\n)?bye\n$/u);
    t.is(both[0]?.exit?.exitCode, 3);
    t.is(both[1]?.exit?.signal, SIGKILL);
    t.is(await guest.exited, 0);
  });

  for (const signal of ['TERM', 'INT', 'USR2', 'PWR']) {
    test(`${build.name}: kill -${signal} 1 inside powers off, and says so`, async (t) => {
      await using started = await startConfigured({ build });
      const { channel, guest } = started;
      const asked = once(channel, 'poweringOff');
      await channel.start(processSpec(`kill -${signal} 1; sleep 1000`));
      t.deepEqual(await asked, [false]);
      t.is(await guest.exited, 0);
    });
  }

  test(`${build.name}: when the socket closes everything ends with it`, async (t) => {
    const started = await startConfigured({ build });
    const mark = `BERTH_MARK=${randomUUID()}`;
    const spec = processSpec(`export ${mark}; echo up; setsid sleep 1000 & exec sleep 1000`);
    const collected = new Collected(started.channel, spec.id);
    await started.channel.start(spec);
    await collected.until(() => collected.text === 'up\n');
    await started[Symbol.asyncDispose]();
    t.deepEqual(await processesMarked(mark), []);
  });
}
