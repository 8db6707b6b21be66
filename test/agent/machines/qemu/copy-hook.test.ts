/* Hooks in copies of real guests: what runs, what stands still, and what is left. */
import assert from 'node:assert';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import type { GuestChannel } from '../../../../agent/machines/guest-link/guest-channel.ts';
import type { MicrovmDriver } from '../../../../agent/machines/qemu/microvm-driver.ts';
import type { Machine, MachineSpec } from '../../../../agent/machines/driver.ts';
import { boot, MachineHost, outputOf } from '../../../helpers/machines.ts';
import { waitFor } from '../../../helpers/wait.ts';

interface Context {
  host: MachineHost;
  driver: MicrovmDriver;
  source: Machine;
  spec: MachineSpec;
}

const test = anyTest as TestFn<Context>;
const never = new AbortController().signal;
const COUNT =
  'nohup sh -c "while :; do date +%s%N > /run/ticks; sleep 0.02; done" >/dev/null 2>&1 &';

let shared: Context | undefined;

test.before(async () => {
  const host = await MachineHost.open();
  const driver = await host.driver({ hasTemplates: true });
  const spec = await host.newSpec();
  const source = await boot(driver, spec);
  await outputOf(source, COUNT);
  await outputOf(source, 'until test -s /run/ticks; do sleep 0.1; done');
  shared = { host, driver, source, spec };
});

test.beforeEach((t) => {
  assert(shared !== undefined);
  t.context = shared;
});

test.after.always(async () => {
  await shared?.host[Symbol.asyncDispose]();
});

const generation = (machine: Machine): Promise<string> =>
  outputOf(machine, 'cat /run/berth/generation');

/** A copy of the source whose processes stand still. */
async function heldCopy({
  context: { host, driver, spec },
}: ExecutionContext<Context>): Promise<{ copy: Machine; channel: GuestChannel }> {
  const child = await host.newSpec();
  await driver.fork(spec.vmId, child);
  const copy = await driver.resume(child, never, { isHeld: true });
  copy.guest.setMaxListeners(0);
  const channel = await waitFor('the guest', async () => copy.guest.channel);
  return { copy, channel };
}

test.serial('a hook runs while all other processes of a copy stand still', async (t) => {
  const { copy, channel } = await heldCopy(t);
  const command =
    'cp /run/ticks /run/before; sleep 0.5; cp /run/ticks /run/after; id -u > /run/user; ' +
    'cp /run/berth/generation /run/seen';
  t.deepEqual(await channel.runHook(command), {
    exitCode: 0,
    signal: undefined,
    isTimedOut: false,
  });
  await t.throwsAsync(channel.start({ ...PROCESS, id: crypto.randomUUID() }), {
    message: /frozen/u,
  });
  await channel.thaw();
  t.is(await outputOf(copy, 'cmp /run/before /run/after && cat /run/user'), '0');
  await waitFor(
    'it to count on',
    async () =>
      (await outputOf(copy, 'cmp -s /run/after /run/ticks && echo same || echo other')) === 'other',
  );
  t.is(await outputOf(copy, 'cmp /run/seen /run/berth/generation && echo same'), 'same');
  await copy.kill();
});

const PROCESS = {
  ...{ command: 'true', environment: {}, directory: '', user: '', terminal: undefined },
  ...{ stdin: false, isFollowed: false, isAttachable: false, timeoutMs: undefined },
};

test.serial('a hook that takes too long is killed with everything that it started', async (t) => {
  const { copy, channel } = await heldCopy(t);
  const command = 'setsid sleep 4711 & setsid sh -c "sleep 4711; true" & sleep 4711';
  t.deepEqual(await channel.runHook(command, 300), {
    ...{ exitCode: undefined, signal: 9, isTimedOut: true },
  });
  await channel.thaw();
  t.is(await outputOf(copy, 'pgrep -fc "sleep 471[1]" || true'), '0');
  t.is(await outputOf(copy, 'ls -d /sys/fs/cgroup/*.hook 2>/dev/null || echo none'), 'none');
  await copy.kill();
});

test.serial('a hook that fails is told from one that ends well, and leaves nothing', async (t) => {
  const { copy, channel } = await heldCopy(t);
  t.like(await channel.runHook('setsid sleep 4712 & exit 3'), { exitCode: 3, isTimedOut: false });
  t.like(await channel.runHook('kill -TERM $$'), { signal: 15, isTimedOut: false });
  await channel.thaw();
  t.is(await outputOf(copy, 'pgrep -fc "sleep 471[2]" || true'), '0');
  await copy.kill();
});

test.serial(
  'a process that a hook starts continues with the others, and freezes with them',
  async (t) => {
    const { copy, channel } = await heldCopy(t);
    const server =
      'setsid sh -c "while :; do date +%s%N > /run/own; sleep 0.02; done" >/dev/null 2>&1 &';
    t.like(await channel.runHook(server), { exitCode: 0 });
    await channel.thaw();
    const own = (): Promise<string> => outputOf(copy, 'cat /run/own');
    const first = await waitFor(
      'its process',
      async () => (await own().catch(() => '')) || undefined,
    );
    await waitFor('it to go on', async () => (await own()) !== first);
    await channel.freeze(10_000);
    t.like(await channel.runHook('cp /run/own /run/a; sleep 0.3; cmp /run/a /run/own'), {
      exitCode: 0,
    });
    await channel.thaw();
    await copy.kill();
  },
);

test.serial(
  'a hook runs in a frozen guest only, and ends with a thaw or with its host',
  async (t) => {
    const { copy, channel } = await heldCopy(t);
    const long = channel.runHook('sleep 4713');
    await channel.ping();
    await channel.thaw();
    await t.throwsAsync(channel.runHook('true'), { message: /busy/u });
    channel.close();
    await t.throwsAsync(long);
    t.is(await outputOf(copy, 'pgrep -fc "sleep 471[3]" || true'), '0');
    await copy.kill();
  },
);

test.serial('each copy has a generation of its own, which a pause leaves alone', async (t) => {
  const { host, driver, source, spec } = t.context;
  const seen = new Set([await generation(source)]);
  await outputOf(source, 'inode() { stat -c %i /run/berth/generation; }; inode > /run/inode');
  const child = await host.newSpec();
  await driver.fork(spec.vmId, child);
  const copy = await driver.resume(child, never);
  copy.guest.setMaxListeners(0);
  const own = await generation(copy);
  t.regex(own, /^[0-9a-f-]{36}$/u);
  t.false(seen.has(own));
  // In place, so that a watch of the file stays.
  t.is(
    await outputOf(copy, 'stat -c %i /run/berth/generation | cmp - /run/inode && echo same'),
    'same',
  );
  t.is(
    await outputOf(copy, 'stat -c %a:%U /run/berth/generation /run/berth'),
    '644:root\n755:root',
  );
  await driver.pause(child.vmId);
  await driver.reclaim(child.vmId);
  const again = await driver.resume(child, never);
  again.guest.setMaxListeners(0);
  t.is(await generation(again), own);
  await again.kill();
  t.true(seen.has(await generation(source)));
});
