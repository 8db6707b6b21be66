/* When NFS servers are looked after. Real ones are killed in test/system/sandbox-mounts.test.ts. */
import anyTest from 'ava';
import { pino } from 'pino';
import { NfsServers } from '../../../../agent/machines/qemu/nfs-servers.ts';
import { planSlot } from '../../../../agent/network/slots/slot.ts';
import { newDiskId, newHostId } from '../../../../shared/ids.ts';
import { MACHINE_LIMITS } from '../../../../agent/machines/limits.ts';
import { FakeTime } from '../../../helpers/fake-time.ts';
import { machineSpec } from '../../../helpers/machine-spec.ts';

const { serial: test } = anyTest;
const log = pino({ level: 'silent' });
const lookMs = MACHINE_LIMITS.nfsServerLookMs;
const never = new Promise<never>(() => undefined);

const mount = { diskId: newDiskId(), path: '/mnt/data', subdirectory: '', readOnly: false };
const spec = machineSpec({
  ...{ uid: 700_000_000, slot: planSlot(newHostId(), 0) },
  mounts: [{ ...mount, contents: '/disks/a' }],
});

test('a server is looked for until its machine has ended, also after a failure', async (t) => {
  using time = new FakeTime();
  let looks = 0;
  const servers = new NfsServers(async () => {
    looks += 1;
    if (looks === 2) throw new Error('no memory is left');
  }, log);
  const ended = Promise.withResolvers<void>();
  servers.watch({ ...spec, vmId: 'without-mounts', mounts: [] }, ended.promise);
  servers.watch(spec, ended.promise);
  await time.pass(lookMs);
  t.is(looks, 1);
  await time.pass(lookMs * 4);
  t.true(looks >= 3);
  ended.resolve();
  await time.settle();
  const before = looks;
  await time.pass(lookMs * 10);
  t.is(looks, before);
  await servers.leave(spec.vmId);
});

test('whoever leaves a machine waits for its server that is being started', async (t) => {
  using time = new FakeTime();
  const started = Promise.withResolvers<void>();
  let looks = 0;
  const servers = new NfsServers(async () => {
    looks += 1;
    await started.promise;
  }, log);
  servers.watch(spec, never);
  await time.pass(lookMs);
  let hasLeft = false;
  const left = servers.leave(spec.vmId).then(() => {
    hasLeft = true;
  });
  await time.settle();
  t.false(hasLeft);
  started.resolve();
  await left;
  await time.pass(lookMs * 10);
  t.is(looks, 1);
});
