import test from 'ava';
import { HostCapacity } from '../../../../agent/sandboxes/holds/host-capacity.ts';
import { SandboxCapacity } from '../../../../shared/directory/capacity.ts';
import { AppError } from '../../../../shared/errors.ts';
import { newAccountId, newHostId, newSandboxId } from '../../../../shared/ids.ts';
import { createLogger } from '../../../../shared/log.ts';
import { needOf } from '../../../../shared/directory/sandbox-need.ts';
import { StorageWatch } from '../../../../shared/storage-watch.ts';
import { startRedis } from '../../../helpers/redis.ts';
import { waitFor } from '../../../helpers/wait.ts';

const config = { memSizeMib: 256, vcpuCount: 1 };
const total = { memoryMib: 4096, vcpus: 16 };
const holder = (size: typeof config, id = newSandboxId()) => ({
  id,
  accountId: newAccountId(),
  config: size,
});
const nothing = { memoryMib: 0, vcpus: 0 };

/** A host, and the directory of its own that it speaks to. */
async function newHost() {
  const stack = new AsyncDisposableStack();
  const { redis } = stack.use(await startRedis());
  const log = createLogger('test', {});
  const directory = new SandboxCapacity(redis);
  const hostId = newHostId();
  const refusal = new AppError('host_full', 'full');
  const storage = new StorageWatch({ directories: ['/'], reserveBytes: 0, refusal, log });
  stack.defer(() => storage.close());
  const parts = { hostId, total, memoryReserveMib: 0, storage, directory, log };
  const capacity = new HostCapacity(parts);
  stack.defer(() => capacity.close());
  const used = () => directory.used(hostId);
  const dispose = (): Promise<void> => stack.disposeAsync();
  return { redis, directory, hostId, capacity, used, [Symbol.asyncDispose]: dispose };
}

test('an announcement corrects what the directory has wrong', async (t) => {
  await using host = await newHost();
  const { directory, hostId, capacity, used } = host;
  // The state of an agent that was killed between taking capacity and journalling the sandbox.
  await directory.announce(hostId, total);
  await directory.hold(hostId, newSandboxId(), total);
  t.false(await capacity.announce());
  t.deepEqual(await used(), nothing);
  capacity.hold(holder(config));
  // Refused requests take nothing.
  const tooLarge = { memSizeMib: 8192, vcpuCount: 1 };
  t.throws(() => capacity.refuseIfFull(tooLarge), { code: 'no_capacity' });
  t.throws(() => capacity.hold(holder(tooLarge)), { code: 'no_capacity' });
  await capacity.announce();
  t.deepEqual(await used(), needOf(config));
});

test('a cordoned host takes no further sandbox, a drained one no machine at all', async (t) => {
  await using host = await newHost();
  const { capacity } = host;
  const own = holder(config);
  capacity.follow('cordoned');
  t.true(capacity.load.isLow, 'so that prewarmed VMs go, and control chooses others');
  t.throws(() => capacity.refuseIfCordoned(), { code: 'no_capacity' });
  t.notThrows(() => capacity.hold(own), 'one that is there already');
  capacity.follow('drained');
  t.throws(() => capacity.hold(own), { code: 'no_capacity' });
  capacity.follow('up');
  t.notThrows(() => capacity.refuseIfCordoned());
  t.false(capacity.load.isLow);
});

test('capacity released while Redis was away is released there when Redis returns', async (t) => {
  await using host = await newHost();
  const { redis, capacity, used } = host;
  const id = newSandboxId();
  capacity.hold(holder(config, id));
  await capacity.announce();
  redis.disconnect(true); // Comes back by itself, but not at once.
  capacity.release(id);
  await t.throwsAsync(capacity.announce());
  const isBack = async (): Promise<boolean> => (await redis.ping().catch(() => '')) === 'PONG';
  await waitFor('Redis', isBack);
  t.deepEqual(await used(), needOf(config));
  await capacity.announce();
  t.deepEqual(await used(), nothing);
});

test('a machine that is paused in memory keeps that, and a start that fails takes no more', async (t) => {
  await using host = await newHost();
  const { capacity } = host;
  const id = newSandboxId();
  capacity.hold(holder(config, id));
  capacity.holdMemory(holder(config, id));
  const { memoryMib } = needOf(config);
  const load = (): [number, number] => [capacity.load.memoryMibUsed, capacity.load.vcpusUsed];
  t.deepEqual(load(), [memoryMib, 0]);
  // Held capacity is not asked for twice.
  const rest = { memSizeMib: total.memoryMib - 2 * memoryMib - 232, vcpuCount: 1 };
  capacity.hold(holder(rest));
  const before = load();
  const restore = capacity.hold(holder(config, id));
  t.is(load()[1], before[1] + 1);
  restore();
  t.deepEqual(load(), before);
});
