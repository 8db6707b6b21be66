/*
 * Virtual machines that QEMU has stopped in a state from which they cannot continue. The machines
 * are real; QEMU is made to stop as it does by itself under KVM.
 */
import test from 'ava';
import type { Machine, MachineEnd } from '../../../../agent/machines/driver.ts';
import { settledWithin } from '../../../../shared/settled-within.ts';
import { boot, MachineHost, outputOf } from '../../../helpers/machines.ts';
import { stopMachineIn } from '../../../helpers/stop-machine.ts';

const ENDS_WITHIN_MS = 60_000;
const LINE = 'KVM internal error. Suberror: 1, emulation failure';

const isMachine = (found: Machine | MachineEnd): found is Machine => 'ended' in found;

const ends = test.macro<[string]>({
  async exec(t, state: string) {
    t.timeout(180_000);
    await using host = await MachineHost.open();
    const spec = await host.newSpec();
    const driver = await host.driver({ hasTemplates: true });
    const machine = await boot(driver, spec);
    await stopMachineIn(state, (await host.processes(spec.vmId)).machine, LINE);
    t.true(await settledWithin(machine.ended, ENDS_WITHIN_MS));
    const end = await machine.ended;
    t.is(end.reason, 'vmm_crashed');
    t.is(end.message, `the virtual machine stopped in QEMU's state ${state}: ${LINE}`);
    await driver.reclaim(spec.vmId);
    await host.endSpec(spec);
    await driver.close();
  },
  title: (_given, state) => `a machine that QEMU stops in the state ${state} has ended`,
});
for (const state of ['internal-error', 'watchdog', 'debug']) test.serial(ends, state);

test.serial('a machine that its guest puts to sleep has shut down', async (t) => {
  t.timeout(180_000);
  await using host = await MachineHost.open();
  const spec = await host.newSpec();
  const driver = await host.driver({ hasTemplates: true });
  const machine = await boot(driver, spec);
  outputOf(machine, 'echo mem > /sys/power/state').catch(() => undefined);
  t.true(await settledWithin(machine.ended, ENDS_WITHIN_MS));
  t.is((await machine.ended).reason, 'guest_shutdown');
  await driver.reclaim(spec.vmId);
  await host.endSpec(spec);
  await driver.close();
});

test.serial(
  'a machine that stopped while no agent ran has ended, and is not continued',
  async (t) => {
    t.timeout(180_000);
    await using host = await MachineHost.open();
    const spec = await host.newSpec();
    const former = await host.driver({ hasTemplates: true });
    (await boot(former, spec)).detach();
    await stopMachineIn('internal-error', (await host.processes(spec.vmId)).machine, LINE);
    const driver = await host.driver({ hasTemplates: true });
    const found = await driver.recover(spec);
    if (isMachine(found)) await driver.continueAfterCrash(spec.vmId).catch(() => undefined);
    const ended = isMachine(found) ? found.ended : Promise.resolve(found);
    t.true(await settledWithin(ended, ENDS_WITHIN_MS));
    const end = await ended;
    t.is(end.message, `the virtual machine stopped in QEMU's state internal-error: ${LINE}`);
    t.true((end.endedAt ?? Infinity) <= Date.now());
    await driver.reclaim(spec.vmId);
    await host.endSpec(spec);
    await driver.close();
  },
);
