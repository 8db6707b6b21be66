/* Memory of machines on a host whose accelerator is another one by now. */
import { readFile } from 'node:fs/promises';
import test from 'ava';
import { erase, boot, MachineHost, outputOf } from '../../../helpers/machines.ts';

test('a checkpoint made under emulation continues emulated on a host that has KVM now', async (t) => {
  t.timeout(180_000);
  await using host = await MachineHost.open();
  const spec = await host.newSpec();
  const former = await host.driver({ hasTemplates: true });
  const machine = await boot(former, spec);
  await outputOf(machine, 'echo kept >/dev/shm/file');
  await former.pause(spec.vmId);
  await former.close();
  const driver = await host.driver({ hasTemplates: true, accelerator: 'kvm' });
  t.deepEqual(driver.accelerator, { accelerator: 'kvm', reason: 'set' });
  const resumed = await driver.resume(spec, AbortSignal.timeout(120_000));
  t.is(await outputOf(resumed, 'cat /dev/shm/file'), 'kept');
  const { machine: pid } = await host.processes(spec.vmId);
  t.regex(await readFile(`/proc/${pid}/cmdline`, 'utf8'), /\0-accel\0tcg,/u);
  // Its next checkpoint is of an emulated machine, too.
  await driver.pause(spec.vmId);
  const again = await driver.resume(spec, AbortSignal.timeout(120_000));
  t.is(await outputOf(again, 'cat /dev/shm/file'), 'kept');
  await erase(driver, spec.vmId);
  await host.endSpec(spec);
  await driver.close();
});
