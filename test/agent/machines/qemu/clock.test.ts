/*
 * Clocks of real guests after everything that stops a machine. Their emulated counter stands still
 * while QEMU is told to stop, and loses 4.69 s with each of its wraps that nobody saw.
 */
import assert from 'node:assert';
import { setTimeout as sleep } from 'node:timers/promises';
import anyTest, { type ExecutionContext, type TestFn } from 'ava';
import type { MicrovmDriver } from '../../../../agent/machines/qemu/microvm-driver.ts';
import type { Machine } from '../../../../agent/machines/driver.ts';
import { MiB } from '../../../../shared/units.ts';
import { begin, boot, MachineHost, outputOf } from '../../../helpers/machines.ts';
import { clockErrorMs } from '../../../helpers/guest-clock.ts';
import { waitFor } from '../../../helpers/wait.ts';

interface Context {
  host: MachineHost;
  driver: MicrovmDriver;
}

const test = anyTest as TestFn<Context>;
const never = new AbortController().signal;
const STALL_MS = 10_000;
const OFF_MS_MAX = 300;
/** How often a machine stops in a row, so that what it loses adds up on the fastest host, too. */
const REPEATS = 4;
const FRESH = 'head -c 300M /dev/urandom > /run/big';

let shared: Context | undefined;

test.before(async () => {
  const host = await MachineHost.open();
  shared = { host, driver: await host.driver({ hasTemplates: true }) };
});

test.beforeEach((t) => {
  assert(shared !== undefined);
  t.context = shared;
});

test.after.always(async () => {
  await shared?.host[Symbol.asyncDispose]();
});

/** Its clock is right a second after it continued, and stays so. */
async function keepsTime(t: ExecutionContext<Context>, machine: Machine): Promise<void> {
  for (const pauseMs of [1000, 3000]) {
    await sleep(pauseMs);
    const errorMs = await clockErrorMs((command) => outputOf(machine, command));
    t.true(errorMs <= OFF_MS_MAX, `off by ${errorMs} ms`);
  }
}

test.serial('forks of much fresh memory cost neither source nor copy any time', async (t) => {
  const { host, driver } = t.context;
  const spec = await host.newSpec({ memSizeMib: 768 });
  const source = await boot(driver, spec);
  await outputOf(source, FRESH);
  const children = await Promise.all(
    Array.from({ length: REPEATS }, () => host.newSpec({ memSizeMib: 768 })),
  );
  for (const child of children) await driver.fork(spec.vmId, child);
  await keepsTime(t, source);
  const [child] = children;
  assert(child !== undefined);
  const copy = await driver.resume(child, never);
  await keepsTime(t, copy);
  await Promise.all([source.kill(), copy.kill()]);
});

test.serial('an emulator that was stopped for seconds costs its guest no time', async (t) => {
  const { host, driver } = t.context;
  const spec = await host.newSpec();
  const machine = await boot(driver, spec);
  const { machine: pid } = await host.processes(spec.vmId);
  for (const stallMs of [STALL_MS, STALL_MS / 2]) {
    process.kill(pid, 'SIGSTOP');
    await sleep(stallMs);
    process.kill(pid, 'SIGCONT');
    await keepsTime(t, machine);
  }
  await machine.kill();
});

test.serial('storage that was full costs a guest no time', async (t) => {
  await using full = await MachineHost.open({ sizeBytes: 48 * MiB });
  const driver = await full.driver();
  const machine = await boot(driver, await full.newSpec());
  const writing = await begin(machine, 'head -c 100M /dev/urandom > /root/file && sync /root/file');
  await waitFor('the host to be full', async () => (await full.freeBytes()) < MiB);
  await sleep(STALL_MS / 2);
  t.is(writing.exit, undefined);
  await full.resize(400 * MiB);
  await writing.ended();
  await keepsTime(t, machine);
  await machine.kill();
});

test.serial('pauses that fail cost their guest no time', async (t) => {
  await using full = await MachineHost.open({ sizeBytes: 256 * MiB });
  const driver = await full.driver();
  const spec = await full.newSpec({ memSizeMib: 768 });
  const machine = await boot(driver, spec);
  await outputOf(machine, FRESH);
  for (let count = 0; count < REPEATS; count += 1) {
    await t.throwsAsync(driver.pause(spec.vmId), { code: 'ENOSPC' });
  }
  await keepsTime(t, machine);
  await machine.kill();
});

test.serial('a guest whose clock is right sees no steps', async (t) => {
  const { host, driver } = t.context;
  const machine = await boot(driver, await host.newSpec());
  // Time of day and time since the boot, which nobody sets, at both ends.
  // A pause in between makes it larger, so the least of some counts.
  const read = 'read up rest < /proc/uptime; date +"%s.%N $up"';
  const difference = async (): Promise<number> => {
    const lines = await outputOf(machine, `for n in 1 2 3 4 5 6 7 8; do ${read}; done`);
    const differences = lines
      .trim()
      .split('\n')
      .map((line) => {
        const [day = 0, up = 0] = line.split(' ').map(Number);
        return day - up;
      });
    return Math.min(...differences);
  };
  const before = await difference();
  await sleep(6000);
  t.true(Math.abs((await difference()) - before) < 0.1);
  await machine.kill();
});
