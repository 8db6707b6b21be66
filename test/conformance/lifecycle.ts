/* Promises of every driver of sandboxes, from the first start of a machine to its end. */
import assert from 'node:assert';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ExecutionContext, TestFn } from 'ava';
import { BootError, type Machine, type MachineSpec } from '../../agent/machines/driver.ts';
import type { MachineDriver } from '../../agent/machines/driver.ts';
import { FairTurns } from '../../agent/system/queues/fair-turns.ts';
import { begin, boot, erase, outputOf } from '../helpers/machines.ts';
import type { DriverHost } from './driver-host.ts';

const GRACE_MS = 10_000;
const never = new AbortController().signal;

/** Machines are heavy: only so many are there at once. */
export const turns = new FairTurns({ count: 4, perAccountMax: 4, refusal: '' });

/** The context of every test of a driver. */
export interface DriverContext {
  readonly host: DriverHost;
  readonly driver: MachineDriver;
}

/** Sandboxes of the test's own, in one turn; they are removed after it. */
export async function ownSpecs(
  t: ExecutionContext<DriverContext>,
  count: number,
): Promise<MachineSpec[]> {
  const { host, driver } = t.context;
  const turn = await turns.acquire('', never);
  t.teardown(() => turn.release());
  const specs: MachineSpec[] = [];
  while (specs.length < count) {
    const spec = await host.newSpec();
    t.teardown(() => erase(driver, spec.vmId));
    specs.push(spec);
  }
  return specs;
}

export async function ownSpec(t: ExecutionContext<DriverContext>): Promise<MachineSpec> {
  const [spec] = await ownSpecs(t, 1);
  assert(spec !== undefined);
  return spec;
}

export function testLifecycle(test: TestFn<DriverContext>): void {
  testStarts(test);
  testEnds(test);
  testTakeOvers(test);
}

function testStarts(test: TestFn<DriverContext>): void {
  test('a guest has the identity that it was given', async (t) => {
    const spec = await ownSpec(t);
    const machine = await boot(t.context.driver, spec);
    const { machineId, bootId } = spec.settings;
    const shown = await outputOf(
      machine,
      'uname -n; cat /etc/machine-id /proc/sys/kernel/random/boot_id; echo $GREETING; pwd',
    );
    const expected = ['machine-under-test', machineId.replaceAll('-', ''), bootId, 'hello', '/'];
    t.deepEqual(shown.split('\n'), expected);
  });

  test('a sandbox with anything on the host is listed', async (t) => {
    const { driver } = t.context;
    const spec = await ownSpec(t);
    t.false((await driver.list()).includes(spec.vmId));
    await driver.prepare(spec);
    t.true((await driver.list()).includes(spec.vmId));
    await erase(driver, spec.vmId);
    t.false((await driver.list()).includes(spec.vmId));
  });

  test('a text that is no VM id reaches no path', async (t) => {
    const { driver } = t.context;
    await t.throwsAsync(driver.remove('../elsewhere'), { instanceOf: RangeError });
    await t.throwsAsync(driver.prepare({ vmId: 'x/../..', uid: 1 }), { instanceOf: RangeError });
  });

  test('a start that is aborted at any moment leaves only the disk', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    await driver.prepare(spec);
    for (const afterMs of [0, 5, 15, 30, 60, 150, 400, 1000]) {
      const reason = new Error(`aborted after ${afterMs} ms`);
      const abort = new AbortController();
      const started = driver.start(spec, abort.signal).then(
        (machine) => machine.kill(), // The machine was up before.
        (error: unknown) => t.is(error, reason),
      );
      await sleep(afterMs);
      abort.abort(reason);
      await started;
      await driver.reclaim(spec.vmId);
      t.deepEqual(await host.leftOf(spec.vmId), []);
    }
    t.true((await driver.list()).includes(spec.vmId));
  });

  test('a guest that is not ready in time is removed without a trace', async (t) => {
    const { host } = t.context;
    const spec = await ownSpec(t);
    const driver = await host.driver({ bootTimeoutMs: 300 });
    const error = await t.throwsAsync(boot(driver, spec), { instanceOf: BootError });
    t.is(error.reason, 'boot_timeout');
    await driver.reclaim(spec.vmId);
    t.deepEqual(await host.leftOf(spec.vmId), []);
  });
}

function testEnds(test: TestFn<DriverContext>): void {
  test('a stop shuts the machine down, and the next start has its disk', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    const machine = await boot(driver, spec);
    await outputOf(machine, 'echo kept > /root/file');
    const running = await begin(machine, 'exec sleep 1000');
    t.like(await machine.stop(GRACE_MS), { reason: 'stopped' });
    t.is(running.exit?.exitCode ?? running.exit?.signal, running.exit?.exitCode ?? 15);
    await driver.prepare(spec); // Changes nothing.
    const again = await driver.start(spec, never);
    t.is(await outputOf(again, 'cat /root/file'), 'kept');
    await again.kill();
    await erase(driver, spec.vmId);
    t.deepEqual(await host.leftOf(spec.vmId), []);
  });

  test('a guest that does not shut down in its grace time is killed', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    const machine = await boot(driver, spec);
    await host.freezeMachine(spec.vmId);
    t.like(await machine.stop(500), { reason: 'stop_forced' });
    await erase(driver, spec.vmId);
  });

  test('a machine that the host killed is reported as killed, also to the next agent', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    const machine = await boot(driver, spec);
    const end = { reason: 'killed_by_host', message: 'it was not paused in time' } as const;
    t.like(await machine.kill(end.message), end);
    t.like(await (await host.driver()).recover(spec), end);
  });

  test('a guest that shuts down by itself is reported as shut down', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    const machine = await boot(driver, spec);
    await begin(machine, 'kill -TERM 1');
    t.like(await machine.ended, { reason: 'guest_shutdown' });
    t.like(await driver.recover(spec), { reason: 'guest_shutdown' });
    await driver.reclaim(spec.vmId);
    t.deepEqual(await host.leftOf(spec.vmId), []);
  });

  test('a guest whose kernel panics is reported as panicked', async (t) => {
    const { driver } = t.context;
    if (!driver.traits.hasOwnKernel) {
      t.pass('it has none that could fail');
      return;
    }
    const machine = await boot(driver, await ownSpec(t));
    await begin(machine, 'sleep 0.1; echo c > /proc/sysrq-trigger');
    const end = await machine.ended;
    t.is(end.reason, 'guest_panic');
    t.regex(end.message, /sysrq/iu);
  });

  test('a machine whose process is killed is reported as crashed, with the signal', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    const machine = await boot(driver, spec);
    await host.killMachine(spec.vmId);
    const end = await machine.ended;
    t.is(end.reason, 'vmm_crashed');
    t.regex(end.message, /SIGKILL/u);
    await driver.reclaim(spec.vmId);
    t.deepEqual(await host.leftOf(spec.vmId), []);
  });
}

function testTakeOvers(test: TestFn<DriverContext>): void {
  test('the next agent takes over a running machine', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    const machine = await boot(driver, spec);
    await outputOf(machine, 'echo kept > /run/file');
    machine.detach();
    const found = await (await host.driver()).recover(spec);
    assert('ended' in found, JSON.stringify(found));
    found.guest.setMaxListeners(0);
    t.is(await outputOf(found, 'cat /run/file'), 'kept');
    t.like(await found.stop(GRACE_MS), { reason: 'stopped' });
  });

  test('an end without an agent is reported to the next agent', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    const ends: Record<string, (machine: Machine) => Promise<unknown>> = {
      guest_shutdown: (machine) => begin(machine, 'sleep 0.3; kill -TERM 1'),
      vmm_crashed: () => host.killMachine(spec.vmId),
    };
    for (const [reason, end] of Object.entries(ends)) {
      const machine = await boot(driver, spec);
      await end(machine);
      machine.detach();
      await sleep(1000);
      const found = await (await host.driver()).recover(spec);
      t.like('ended' in found ? await found.ended : found, { reason });
    }
  });

  test('a restart of the host is reported as the end of its machines', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    const machine = await boot(driver, spec);
    machine.detach();
    await driver.reclaim(spec.vmId);
    t.like(await driver.recover(spec), { reason: 'vmm_crashed' });
    (await boot(driver, spec)).detach();
    await host.pretendRestart(spec.vmId);
    t.like(await driver.recover(spec), { reason: 'host_restarted' });
  });

  test('reclaiming a leftover is idempotent', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    (await boot(driver, spec)).detach();
    await driver.reclaim(spec.vmId);
    await driver.reclaim(spec.vmId);
    t.deepEqual(await host.leftOf(spec.vmId), []);
    t.true((await driver.list()).includes(spec.vmId));
  });
}
