import { access, readdir } from 'node:fs/promises';
import test from 'ava';
import { pino } from 'pino';
import { detectCgroups, removeCgroups } from '../../../../agent/system/cgroup.ts';
import { chooseAccelerator } from '../../../../agent/microvm/qemu/accelerator.ts';
import { listMachineCgroups } from '../../../../agent/machines/machine-cgroup.ts';
import { newHostId } from '../../../../shared/ids.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';
import { isFull } from '../../../helpers/full.ts';

const log = pino({ level: 'silent' });

test('an accelerator that is set explicitly is not probed', async (t) => {
  await using directory = await temporaryDirectory();
  const host = { guestDir: '', rootDisk: '', cgroups: await detectCgroups(), cgroupParent: '/no' };
  const options = { host, directory: directory.path, uid: 700_000_000, log };
  t.is(await chooseAccelerator('tcg', options), 'tcg');
  t.is(await chooseAccelerator('kvm', options), 'kvm');
  t.deepEqual(await readdir(directory.path), []);
});

// Where /dev/kvm hangs it takes the whole time that the guest is given.
(isFull ? test : test.skip)('the host is tried out once, and nothing is left of it', async (t) => {
  await using directory = await temporaryDirectory();
  const cgroups = await detectCgroups();
  const cgroupParent = `/berth-test/${newHostId()}`;
  const guestDir = process.env['GUEST_DIR'] ?? '';
  const host = { guestDir, rootDisk: '', cgroups, cgroupParent };
  const options = { host, directory: directory.path, uid: 700_000_000, log };
  const accelerator = await chooseAccelerator('auto', options);
  t.deepEqual(await listMachineCgroups(cgroups, cgroupParent), []);
  const isThere = await access('/dev/kvm').then(
    () => true,
    () => false,
  );
  // Without the device there is nothing to try, nor to remember.
  t.deepEqual(await readdir(directory.path), isThere ? ['accelerator.json'] : []);
  const startedAt = performance.now();
  t.is(await chooseAccelerator('auto', options), accelerator);
  t.log(`known again after ${Math.round(performance.now() - startedAt)} ms`);
  await removeCgroups(cgroups, cgroupParent);
});
