/* Prewarming on machines in memory, by a clock that the test moves. */
import anyTest from 'ava';
import { pino } from 'pino';
import { SlotPool } from '../../../../agent/network/slots/slot-pool.ts';
import { PrewarmedMachines } from '../../../../agent/sandboxes/prewarming/prewarmed-machines.ts';
import { UidPool } from '../../../../agent/sandboxes/holds/uid-pool.ts';
import { newHostId } from '../../../../shared/ids.ts';
import { FakeTime } from '../../../helpers/fake-time.ts';
import { InMemoryDriver } from '../../../helpers/in-memory-driver.ts';
import { InMemoryHost } from '../../../helpers/in-memory-host.ts';
import { builtImage, DIGEST, InMemoryImages } from '../../../helpers/in-memory-images.ts';

const { serial: test } = anyTest;
const log = pino({ level: 'silent' });
const shape = { vcpuCount: 1, memSizeMib: 256 };
const done = (): Promise<void> => Promise.resolve();

/** Machines of one host of which so many are kept ready. */
async function open(max: number, slotsMax = 12) {
  const time = new FakeTime();
  const host = new InMemoryHost();
  const namespaces = {
    list: () => Promise.resolve([]),
    make: done,
    renew: () => Promise.resolve(true),
    remove: done,
  };
  const slots = await SlotPool.open({
    ...{ hostId: newHostId(), slotsMax, readyMax: 0, leased: [], namespaces, log },
  });
  const uids = new UidPool(700_000_000, []);
  const driver = new InMemoryDriver(host, { hasTemplates: true });
  const busy = { isBusy: false };
  const images = new InMemoryImages();
  const spares = new PrewarmedMachines({
    copySnapshot: () => Promise.resolve(false),
    ...{ driver, slots, uids, images: images.open(), max, log },
    isBusy: () => busy.isBusy,
    isLow: () => false,
  });
  return {
    time,
    host,
    slots,
    uids,
    images,
    spares,
    busy,
    [Symbol.dispose]: () => time[Symbol.dispose](),
  };
}

test('a VM of a requested shape is prewarmed once no machine is starting', async (t) => {
  using opened = await open(2);
  const { time, host, spares, busy } = opened;
  busy.isBusy = true;
  t.is(spares.take(shape), undefined);
  await time.pass(5_000);
  t.is(host.running.length, 0);
  busy.isBusy = false;
  await time.pass(20_000);
  t.is(host.running.length, 1);
  const taken = spares.take(shape);
  t.is(taken?.vmId, host.running[0]?.id);
  t.is(spares.take(shape), undefined, 'it was given away once');
  await spares.close();
});

test('a prewarmed VM is evicted when its shape is not requested again', async (t) => {
  using opened = await open(2);
  const { time, host, slots, uids, spares } = opened;
  spares.take(shape);
  await time.pass(2_000);
  t.is(host.running.length, 1);
  await time.pass(11 * 60_000, 5_000);
  t.deepEqual(host.list(), []);
  t.is(slots.freeCount, 12);
  t.is(uids.take(), 700_000_000, 'its user can be another one’s');
  await spares.close();
});

test('as many VMs are kept as were requested in the busiest of ten minutes', async (t) => {
  using opened = await open(8, 32);
  const { time, host, spares } = opened;
  for (let count = 0; count < 5; count += 1) spares.take(shape);
  await time.pass(90_000, 1_000);
  t.is(host.running.length, 5);
  for (let count = 0; count < 5; count += 1) t.not(spares.take(shape), undefined);
  t.is(spares.take(shape), undefined);
  await time.pass(8 * 60_000, 5_000);
  t.is(host.running.length, 5 + 6, 'those that were taken run on');
  spares.take(shape);
  await time.pass(7 * 60_000, 5_000);
  t.is(host.running.length, 6 + 1, 'the busy minute is over for long');
  await spares.close();
});

test('kinds that are requested often share the places, and none loses its own', async (t) => {
  using opened = await open(6, 32);
  const { time, host, spares } = opened;
  const other = { vcpuCount: 2, memSizeMib: 512 };
  const rare = { vcpuCount: 1, memSizeMib: 1024 };
  for (let count = 0; count < 20; count += 1) {
    spares.take(shape);
    spares.take(other);
  }
  spares.take(rare);
  await time.pass(60_000);
  t.is(host.running.length, 5);
  const before = host.running.map(({ id }) => id);
  t.not(spares.take(rare), undefined);
  for (const kind of [shape, other]) {
    t.not(spares.take(kind), undefined);
    t.not(spares.take(kind), undefined);
    t.is(spares.take(kind), undefined);
  }
  await time.pass(60_000);
  t.is(host.running.length, 10);
  t.true(before.every((id) => host.running.some((machine) => machine.id === id)));
  await spares.close();
});

test('prewarming waits while sandboxes are requested', async (t) => {
  using opened = await open(8);
  const { time, host, spares } = opened;
  for (let count = 0; count < 40; count += 1) {
    spares.take(shape);
    await time.pass(100);
  }
  t.is(host.running.length, 0);
  await time.pass(20_000);
  t.is(host.running.length, 8);
  await spares.close();
});

test('a prewarmed VM that ends is removed, and another is started later', async (t) => {
  using opened = await open(1);
  const { time, host, spares } = opened;
  spares.take(shape);
  await time.pass(2_000);
  host.running[0]?.stop('guest_panic');
  await time.pass(5_000);
  t.deepEqual(host.list(), []);
  await time.pass(70_000);
  t.is(host.running.length, 1);
  await spares.close();
  t.deepEqual(host.list(), []);
  t.deepEqual(host.faults, []);
});

test('a VM is prewarmed for the image that was requested, and holds it', async (t) => {
  using opened = await open(2);
  const { time, host, spares, images } = opened;
  const image = builtImage();
  images.present.set(DIGEST, image);
  t.is(spares.take(shape, image), undefined);
  await time.pass(20_000);
  t.is(images.holds.get(DIGEST), 1);
  t.is(spares.take(shape), undefined, 'that VM has another image');
  const taken = spares.take(shape, image);
  t.is(host.disks.get(taken?.vmId ?? '')?.image, image.rootDisk);
  t.is(images.holds.get(DIGEST), 0, 'the sandbox that took it holds the image');
  await spares.close();
});

test('an image that is gone is not prewarmed any more', async (t) => {
  using opened = await open(2);
  const { time, host, slots, uids, spares } = opened;
  spares.take(shape, builtImage());
  await time.pass(60_000);
  t.is(host.running.length, 0);
  t.is(slots.freeCount, 12);
  t.is(uids.take(), 700_000_000);
  await spares.close();
});
