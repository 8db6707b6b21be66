/* Memory functions of every driver: pause, resume, fork, prewarmed VMs. */
import assert from 'node:assert';
import { randomUUID } from 'node:crypto';
import type { ExecutionContext, TestFn } from 'ava';
import type { Machine, MachineSpec } from '../../agent/machines/driver.ts';
import { boot, erase, outputOf } from '../helpers/machines.ts';
import { type DriverContext, ownSpec, ownSpecs } from './lifecycle.ts';

const never = new AbortController().signal;

/**
 * Goes on in memory where the source of a fork is, if the driver copies it; from the disk
 * otherwise.
 */
async function broughtUp(t: ExecutionContext<DriverContext>, child: MachineSpec): Promise<Machine> {
  const { driver } = t.context;
  t.is(await driver.hasCheckpoint(child.vmId), driver.traits.forksHaveMemory);
  return driver.traits.forksHaveMemory ? resumed(t, child) : boot(driver, child);
}

export const dirty = 'head -c 8000000 /dev/urandom > /run/random; sha256sum /run/random';
export const check = 'sha256sum /run/random';

async function resumed(
  t: ExecutionContext<DriverContext>,
  spec: MachineSpec,
  signal = never,
): Promise<Machine> {
  const machine = await t.context.driver.resume(spec, signal);
  machine.guest.setMaxListeners(0);
  return machine;
}

export function testMemory(test: TestFn<DriverContext>): void {
  testPauses(test);
  testForks(test);
}

function testPauses(test: TestFn<DriverContext>): void {
  test('a checkpoint resumes a paused machine once', async (t) => {
    const { driver, host } = t.context;
    const spec = await ownSpec(t);
    const machine = await boot(driver, spec);
    const sum = await outputOf(machine, dirty);
    await driver.pause(spec.vmId);
    t.true(await driver.hasCheckpoint(spec.vmId));
    await driver.reclaim(spec.vmId);
    t.deepEqual(await host.leftOf(spec.vmId), []);
    const again = await resumed(t, spec);
    t.is(await outputOf(again, check), sum);
    t.false(await driver.hasCheckpoint(spec.vmId));
    await again.kill();
    await t.throwsAsync(driver.resume(spec, never));
  });

  test('a discarded checkpoint cannot be resumed, and the disk is unchanged', async (t) => {
    const { driver } = t.context;
    const spec = await ownSpec(t);
    const machine = await boot(driver, spec);
    await outputOf(machine, 'echo kept > /root/name; sync');
    await driver.pause(spec.vmId);
    await driver.reclaim(spec.vmId);
    t.true(await driver.hasCheckpoint(spec.vmId));
    await driver.discardCheckpoint(spec.vmId);
    t.false(await driver.hasCheckpoint(spec.vmId));
    await t.throwsAsync(driver.resume(spec, never));
    const again = await boot(driver, spec);
    t.is(await outputOf(again, 'cat /root/name'), 'kept');
    await again.kill();
  });

  test('a start gives a prewarmed VM its identity, or replaces one that ended', async (t) => {
    const { driver } = t.context;
    const facts = 'cat /etc/machine-id; echo $GREETING';
    for (const isKilled of [false, true]) {
      const spec = await ownSpec(t);
      const settings = { ...spec.settings, hostname: 'prewarmed', environment: {} };
      const { ended } = await driver.prewarm({ ...spec, settings }, never);
      if (isKilled) await driver.reclaim(spec.vmId);
      const named = { ...spec.settings, environment: { GREETING: 'hello' } };
      const machine = await driver.start({ ...spec, settings: named }, never);
      t.is(machine.origin?.kind === 'prewarmed', !isKilled);
      machine.guest.setMaxListeners(0);
      const shown = await outputOf(machine, facts);
      t.is(shown, `${spec.settings.machineId.replaceAll('-', '')}\nhello`);
      await machine.kill();
      if (!isKilled) await ended;
    }
  });
}

function testForks(test: TestFn<DriverContext>): void {
  test('forks of a running machine are independent over three generations', async (t) => {
    const { driver } = t.context;
    const [one, ...others] = await ownSpecs(t, 3);
    assert(one !== undefined);
    const first = await boot(driver, one);
    const sum = await outputOf(first, dirty);
    await outputOf(first, 'echo first > /root/name');
    const machines = [first];
    const expected = ['changed', 'second', 'third'];
    for (const [index, spec] of others.entries()) {
      const name = expected[index + 1];
      const parent = machines.at(-1) ?? first;
      await driver.fork((others[index - 1] ?? one).vmId, spec);
      const child = await broughtUp(t, spec);
      if (driver.traits.forksHaveMemory) t.is(await outputOf(child, check), sum);
      t.is(await outputOf(child, 'cat /root/name'), await outputOf(parent, 'cat /root/name'));
      await outputOf(child, `echo ${name} > /root/name; sync`);
      const id = 'cat /proc/sys/kernel/random/boot_id /etc/machine-id';
      t.not(await outputOf(parent, id), await outputOf(child, id));
      machines.push(child);
    }
    await outputOf(first, 'echo changed > /root/name');
    t.not(await outputOf(first, dirty), sum);
    const names = await Promise.all(machines.map((each) => outputOf(each, 'cat /root/name')));
    t.deepEqual(names, expected);
    // Also after each began again from its disk.
    for (const [index, machine] of machines.entries()) {
      await machine.stop(20_000);
      const spec = others[index - 1] ?? one;
      await driver.reclaim(spec.vmId);
      const again = await boot(driver, spec);
      t.is(await outputOf(again, 'cat /root/name'), expected[index] ?? '');
      await again.kill();
    }
  });

  test('paused and stopped machines can be forked', async (t) => {
    const { driver } = t.context;
    const [spec, child, grandchild] = await ownSpecs(t, 3);
    assert(spec !== undefined && child !== undefined && grandchild !== undefined);
    const machine = await boot(driver, spec);
    const sum = await outputOf(machine, dirty);
    await outputOf(machine, 'echo kept > /root/name; sync');
    await driver.pause(spec.vmId);
    await driver.fork(spec.vmId, child);
    const copy = await broughtUp(t, child);
    if (driver.traits.forksHaveMemory) t.is(await outputOf(copy, check), sum);
    await outputOf(copy, 'echo copy > /root/name');
    const original = await resumed(t, spec);
    t.is(await outputOf(original, `${check}; cat /root/name`), `${sum}\nkept`);
    await copy.stop(20_000);
    await driver.reclaim(child.vmId);
    await driver.fork(child.vmId, grandchild);
    t.false(await driver.hasCheckpoint(grandchild.vmId));
    await erase(driver, child.vmId);
    const last = await boot(driver, grandchild);
    t.is(await outputOf(last, 'cat /root/name'), 'copy');
    for (const each of [original, last]) await each.kill();
  });

  test('copies of a copy that never runs are made at once, and it stays as it was', async (t) => {
    const { driver } = t.context;
    const [spec, ...children] = await ownSpecs(t, 3);
    assert(spec !== undefined);
    const kept = { vmId: randomUUID(), uid: spec.uid };
    t.teardown(() => erase(driver, kept.vmId));
    const machine = await boot(driver, spec);
    const sum = await outputOf(machine, dirty);
    await outputOf(machine, 'echo kept > /root/name; sync');
    await driver.fork(spec.vmId, kept);
    await machine.kill();
    const bytes = await driver.storedBytes(kept.vmId);
    t.true(bytes > 0);
    await Promise.all(children.map((child) => driver.fork(kept.vmId, child)));
    for (const child of children) {
      const copy = await broughtUp(t, child);
      if (driver.traits.forksHaveMemory) t.is(await outputOf(copy, check), sum);
      t.is(await outputOf(copy, 'cat /root/name'), 'kept');
      await outputOf(copy, 'echo changed > /root/name; sync');
      await copy.kill();
    }
    t.is(await driver.storedBytes(kept.vmId), bytes);
    t.is(await driver.hasCheckpoint(kept.vmId), driver.traits.forksHaveMemory);
  });

  test('a prewarmed copy goes on where it was copied, as the machine that takes it', async (t) => {
    const { driver } = t.context;
    const [spec, child] = await ownSpecs(t, 2);
    assert(spec !== undefined && child !== undefined);
    const machine = await boot(driver, spec);
    const sum = await outputOf(machine, dirty);
    await outputOf(machine, 'echo kept > /root/name; sync');
    await driver.fork(spec.vmId, child);
    await machine.kill();
    const { hasOwnKernel, forksHaveMemory } = driver.traits;
    const placeholder = { ...child.settings, hostname: 'prewarmed', machineId: randomUUID() };
    await driver.prewarm({ ...child, settings: placeholder }, never);
    const copy = forksHaveMemory ? await resumed(t, child) : await boot(driver, child);
    t.is(copy.origin?.kind, 'prewarmed');
    if (forksHaveMemory) t.is(await outputOf(copy, check), sum);
    t.is(await outputOf(copy, 'cat /root/name'), 'kept');
    const { hostname, machineId } = child.settings;
    const shown = await outputOf(copy, 'uname -n; cat /etc/machine-id');
    t.is(shown, `${hostname}\n${machineId.replaceAll('-', '')}`);
    if (hasOwnKernel) t.false(await driver.hasCheckpoint(child.vmId));
    await copy.kill();
  });

  test('a fork of a machine that never ran has a new disk', async (t) => {
    const { driver } = t.context;
    const [spec, child] = await ownSpecs(t, 2);
    assert(spec !== undefined && child !== undefined);
    t.false(await driver.hasDisk(spec.vmId));
    await driver.fork(spec.vmId, child);
    t.false(await driver.hasCheckpoint(child.vmId));
    const machine = await boot(driver, child);
    t.true(await driver.hasDisk(child.vmId));
    await machine.kill();
  });
}
