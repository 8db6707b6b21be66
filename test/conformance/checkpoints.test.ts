/* Memory functions of drivers: templates, pause, resume, fork. Against virtual machines. */
import { mkdir, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import anyTest, { type TestFn } from 'ava';
import type { Machine, MachineSpec } from '../../agent/machines/driver.ts';
import type { MicrovmDriver } from '../../agent/machines/qemu/microvm-driver.ts';
import { paths } from '../../agent/system/paths.ts';
import { readChain } from '../../agent/machines/qemu/disk/disk-chain.ts';
import { run } from '../../agent/system/spawn.ts';
import { newSandboxId } from '../../shared/ids.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';
import { boot, erase, MachineHost, outputOf } from '../helpers/machines.ts';
import { beginCounting, lastCount } from '../helpers/counting.ts';
import { waitFor } from '../helpers/wait.ts';
import type { DriverContext } from './lifecycle.ts';
import { check, dirty, testMemory } from './memory.ts';
import { testProcessConnections } from './process-connections.ts';
import { isFull } from '../helpers/full.ts';

const test = anyTest as TestFn<DriverContext>;

const never = new AbortController().signal;
const GENERATIONS = isFull ? 20 : 8;

let host: MachineHost;
let driver: MicrovmDriver;

test.before(async () => {
  host = await MachineHost.open();
  driver = await host.driver({ hasTemplates: true });
});

test.beforeEach((t) => {
  t.context = { host, driver };
});

test.after.always(async () => {
  await driver.close();
  await host[Symbol.asyncDispose]();
});

/** Boots one, and waits until the next ones need not. */
async function withTemplate(): Promise<void> {
  const spec = await host.newSpec();
  const machine = await boot(driver, spec);
  await machine.kill();
  await waitFor('the template', async () => driver.hasTemplate(spec), 150_000);
}

const disksOf = ({ vmId }: MachineSpec): string => join(host.runDir(vmId), '../disks');

async function resumed(spec: MachineSpec): Promise<Machine> {
  const machine = await driver.resume({ ...spec, slot: spec.slot }, never);
  machine.guest.setMaxListeners(0);
  return machine;
}

test.serial(
  'a machine starts from the memory of a template, with an identity of its own',
  async (t) => {
    await withTemplate();
    const specs = [await host.newSpec(), await host.newSpec()];
    const machines = await Promise.all(specs.map((spec) => boot(driver, spec)));
    const facts =
      'cat /proc/sys/kernel/random/boot_id /etc/machine-id; head -c 8 /dev/urandom | od -An -tx1';
    const [one, two] = await Promise.all(machines.map((machine) => outputOf(machine, facts)));
    const lines = [one, two].map((text) => (text ?? '').split('\n'));
    for (const index of [0, 1, 2]) t.not(lines[0]?.[index], lines[1]?.[index]);
    t.is(await outputOf(machines[0] as Machine, 'findmnt -no SOURCE /'), '/dev/vda');
    for (const machine of machines) await machine.kill();
  },
);

test.serial(
  'disk layers that no fork shares are merged; shared ones keep their contents',
  async (t) => {
    const spec = await host.newSpec();
    const disks = disksOf(spec);
    let machine = await boot(driver, spec);
    const kept = await host.newSpec();
    for (let round = 0; round < 20; round += 1) {
      await outputOf(
        machine,
        `head -c 300000 /dev/urandom > /root/f${round}; rm -f /root/f${round - 5}`,
      );
      const child = round === 3 ? kept : { vmId: newSandboxId(), uid: kept.uid };
      await driver.fork(spec.vmId, child);
      if (child !== kept) await erase(driver, child.vmId);
    }
    const sums = await outputOf(machine, 'sha256sum /root/f*');
    const before = await readChain(disks);
    t.true(before.length > 20, String(before.length));
    await driver.pause(spec.vmId);
    // Given up in the middle of it, at whatever it is just then.
    for (const ms of [20, 100, 200]) {
      await t.throwsAsync(driver.resume(spec, AbortSignal.timeout(ms)));
    }
    t.true(await driver.hasCheckpoint(spec.vmId));
    machine = await resumed(spec);
    // The fork's layers are unchanged; of the others above it there are fewer.
    const after = await readChain(disks);
    const shared = (await readChain(disksOf(kept))).slice(0, -1);
    t.deepEqual(after.slice(0, shared.length), shared);
    t.true(after.length < 16, String(after.length));
    t.deepEqual((await readdir(disks)).toSorted(), [...after, 'chain.json'].toSorted());
    await outputOf(machine, 'sync; echo 3 > /proc/sys/vm/drop_caches');
    t.is(await outputOf(machine, 'sha256sum /root/f*'), sums);
    await machine.kill();
    machine = await boot(driver, spec);
    t.is(await outputOf(machine, 'sha256sum /root/f*'), sums);
    const copy = await resumed(kept);
    t.is(await outputOf(copy, 'ls /root | tr "\\n" " "'), 'f0 f1 f2 f3');
    await copy.kill();
    await machine.kill();
  },
);

test.serial(
  'forking a machine again that wrote nothing since the last fork adds no layer',
  async (t) => {
    const spec = await host.newSpec();
    const machine = await boot(driver, spec);
    await outputOf(machine, 'echo here > /root/kept; sync; cat /root/kept');
    const children = await Promise.all([host.newSpec(), host.newSpec(), host.newSpec()]);
    for (const child of children) await driver.fork(spec.vmId, child);
    const layers = await readChain(disksOf(spec));
    t.true(layers.length < 4, String(layers));
    for (const child of children) {
      const copy = await resumed(child);
      t.is(await outputOf(copy, 'cat /root/kept'), 'here');
      await copy.kill();
    }
    await machine.kill();
  },
);

test.serial('a machine runs on however often it is forked, until one is refused', async (t) => {
  const spec = await host.newSpec();
  const machine = await boot(driver, spec);
  const sum = await outputOf(machine, dirty);
  const forkUntilRefused = async (): Promise<unknown> => {
    for (let forks = 1; ; forks += 1) {
      await outputOf(machine, `echo ${forks} > /root/written; sync`);
      const child = { vmId: newSandboxId(), uid: spec.uid };
      try {
        await driver.fork(spec.vmId, child);
      } catch (error) {
        return error;
      } finally {
        await driver.remove(child.vmId);
      }
    }
  };
  t.like(await forkUntilRefused(), { code: 'sandbox_start_conflict' }, 'its disk has all layers');
  t.is(await outputOf(machine, check), sum);
  await driver.pause(spec.vmId);
  const again = await resumed(spec);
  t.is(await outputOf(again, check), sum);
  await again.kill();
});

test.serial(
  `${GENERATIONS} generations of pause and resume keep memory and running processes`,
  async (t) => {
    const spec = await host.newSpec();
    let machine = await boot(driver, spec);
    await outputOf(machine, beginCounting('/run/count', 0.05));
    let counted = 0;
    let sum = await outputOf(machine, dirty);
    for (let generation = 1; generation <= GENERATIONS; generation += 1) {
      await driver.pause(spec.vmId);
      machine = await resumed(spec);
      t.is(await outputOf(machine, check), sum, `generation ${generation}`);
      const before = counted;
      counted = await waitFor('the process to go on counting', async () => {
        const count = Number(await outputOf(machine, lastCount('/run/count')));
        return count > before ? count : undefined;
      });
      if (generation % 4 === 0) sum = await outputOf(machine, dirty);
    }
    await machine.kill();
  },
);

test.serial('an agent with a newer guest resumes checkpoints of the former guest', async (t) => {
  await withTemplate();
  const specs = [await host.newSpec(), await host.newSpec({ memSizeMib: 260 })];
  const sums: string[] = [];
  for (const spec of specs) {
    const machine = await boot(driver, spec); // From a template; without one.
    sums.push(await outputOf(machine, dirty));
    await driver.pause(spec.vmId);
  }
  await using other = await temporaryDirectory();
  const guestDir = join(other.path, 'guest');
  await run('cp', ['-a', process.env['GUEST_DIR'] ?? '', guestDir]);
  await run('sh', ['-c', `echo >> ${guestDir}/initramfs`]); // The image it would boot has changed.
  const upgraded = await host.driver({ hasTemplates: true, guestDir });
  for (const [index, spec] of specs.entries()) {
    let machine = await upgraded.resume(spec, never);
    machine.guest.setMaxListeners(0);
    t.is(await outputOf(machine, check), String(sums[index]));
    await upgraded.pause(spec.vmId);
    machine = await upgraded.resume(spec, never);
    machine.guest.setMaxListeners(0);
    t.is(await outputOf(machine, check), String(sums[index]));
    await machine.kill();
  }
  await upgraded.close();
});

test.serial('another host with the same storage resumes a paused machine', async (t) => {
  await withTemplate();
  const spec = await host.newSpec();
  const machine = await boot(driver, spec);
  const sum = await outputOf(machine, dirty);
  await outputOf(machine, 'echo disk > /root/kept');
  await driver.pause(spec.vmId);
  await using other = await MachineHost.open();
  for (const directory of [paths.templates, paths.sandboxes]) {
    await mkdir(directory(other.dataDir), { recursive: true });
    await run('cp', ['-a', `${directory(host.dataDir)}/.`, directory(other.dataDir)]);
  }
  const theirs = await other.driver({ hasTemplates: true });
  const { slot } = await other.newSpec();
  const again = await theirs.resume({ ...spec, slot }, never);
  again.guest.setMaxListeners(0);
  t.is(await outputOf(again, check), sum);
  t.is(await outputOf(again, 'cat /root/kept'), 'disk');
  await again.kill();
  await theirs.reclaim(spec.vmId);
  await theirs.close();
  await erase(driver, spec.vmId);
});

test.serial('an agent pauses a machine of the former agent without its caches', async (t) => {
  const spec = await host.newSpec();
  const machine = await boot(driver, spec);
  const sum = await outputOf(machine, dirty);
  machine.detach();
  await driver.close();
  driver = await host.driver({ hasTemplates: true });
  const found = await driver.recover(spec);
  if ('reason' in found) return t.fail(found.message);
  found.guest.setMaxListeners(0);
  await waitFor('the guest', async () => found.guest.channel !== undefined);
  t.is(await outputOf(found, check), sum);
  await waitFor('the monitor', async () =>
    driver.pause(spec.vmId).then(
      () => true,
      () => false,
    ),
  );
  await driver.close();
  driver = await host.driver({ hasTemplates: true });
  const again = await resumed(spec);
  t.is(await outputOf(again, check), sum);
  await again.kill();
});

testMemory(test);
testProcessConnections(test);

const fullTest = isFull ? test.serial : test.serial.skip;

fullTest(
  '50 forks of one that runs: no two are alike, and it starts from its disk afterwards',
  async (t) => {
    const spec = await host.newSpec();
    let source = await boot(driver, spec);
    const facts = [
      'cat /proc/sys/kernel/random/boot_id',
      'cat /etc/machine-id',
      'head -c 16 /dev/urandom | od -An -tx1 | tr -d " "',
      'cat /proc/sys/kernel/random/uuid',
    ].join('; ');
    const seen = new Set<string>();
    for (let fork = 1; fork <= 50; fork += 1) {
      const child = await host.newSpec();
      await driver.fork(spec.vmId, child);
      const machine = await resumed(child);
      for (const fact of (await outputOf(machine, facts)).split('\n')) seen.add(fact);
      await machine.kill();
      await erase(driver, child.vmId);
      await host.endSpec(child);
    }
    t.is(seen.size, 50 * 4);
    await outputOf(source, 'echo kept > /root/name; sync');
    await source.stop(20_000);
    await driver.reclaim(spec.vmId);
    source = await boot(driver, spec);
    t.is(await outputOf(source, 'cat /root/name'), 'kept');
    await source.kill();
  },
);
