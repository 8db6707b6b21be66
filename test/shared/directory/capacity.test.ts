import { SandboxCapacity } from '../../../shared/directory/capacity.ts';
import { keys } from '../../../shared/directory/keys.ts';
import { newHostId, newSandboxId } from '../../../shared/ids.ts';
import { redisTest } from '../../helpers/redis-test.ts';
import { waitFor } from '../../helpers/wait.ts';

const LONG_MS = 600_000;
const one = { memoryMib: 1024, vcpus: 1 };

interface Context {
  readonly capacity: SandboxCapacity;
}

const test = redisTest<Context>((redis) => ({ capacity: new SandboxCapacity(redis) }));

/** Announces a host with capacity for `count` of {@link one}. */
async function hostFor({ capacity }: Context, count: number): Promise<string> {
  const hostId = newHostId();
  await capacity.announce(hostId, { memoryMib: count * one.memoryMib, vcpus: count * one.vcpus });
  return hostId;
}

test('concurrent reservations never exceed the capacity of the host', async (t) => {
  const { capacity } = t.context;
  const hostId = await hostFor(t.context, 3);
  const results = await Promise.all(
    Array.from({ length: 20 }, () => capacity.reserve(hostId, newSandboxId(), one, LONG_MS)),
  );
  t.is(results.filter(Boolean).length, 3);
  t.deepEqual(await capacity.used(hostId), { memoryMib: 3072, vcpus: 3 });
});

test('memory and vCPUs limit reservations independently', async (t) => {
  const { capacity } = t.context;
  const hostId = newHostId();
  await capacity.announce(hostId, { memoryMib: 4096, vcpus: 4 });
  const reserve = (memoryMib: number, vcpus: number): Promise<boolean> =>
    capacity.reserve(hostId, newSandboxId(), { memoryMib, vcpus }, LONG_MS);
  t.false(await reserve(4097, 1));
  t.false(await reserve(1, 5));
  t.true(await reserve(4095, 1));
  t.false(await reserve(2, 1));
  t.true(await reserve(1, 3));
  t.false(await reserve(0, 1));
});

test('a host that announced nothing has no capacity', async (t) => {
  const { capacity } = t.context;
  const hostId = newHostId();
  t.false(await capacity.reserve(hostId, newSandboxId(), one, LONG_MS));
  await capacity.hold(hostId, newSandboxId(), one);
  t.false(await capacity.reserve(hostId, newSandboxId(), one, LONG_MS));
  t.deepEqual(await capacity.used(hostId), one);
});

test('a reservation lapses, held capacity does not', async (t) => {
  const { capacity } = t.context;
  const hostId = await hostFor(t.context, 2);
  const held = newSandboxId();
  t.true(await capacity.reserve(hostId, held, one, 30));
  t.true(await capacity.reserve(hostId, newSandboxId(), one, 30));
  await capacity.hold(hostId, held, one);
  await waitFor('the reservation to lapse', async () => {
    return (await capacity.used(hostId)).vcpus === 1;
  });
  t.true(await capacity.reserve(hostId, newSandboxId(), one, LONG_MS));
  t.false(await capacity.reserve(hostId, newSandboxId(), one, LONG_MS));
});

test('a reservation that is repeated counts once', async (t) => {
  const { capacity } = t.context;
  const hostId = await hostFor(t.context, 1);
  const id = newSandboxId();
  t.true(await capacity.reserve(hostId, id, one, LONG_MS));
  t.true(await capacity.reserve(hostId, id, one, LONG_MS));
  t.deepEqual(await capacity.used(hostId), one);
});

test('the owner may hold more than was announced', async (t) => {
  const { capacity } = t.context;
  const hostId = await hostFor(t.context, 1);
  await capacity.hold(hostId, newSandboxId(), one);
  await capacity.hold(hostId, newSandboxId(), one);
  t.is((await capacity.used(hostId)).vcpus, 2);
});

test('releasing a reservation does not release what its owner holds by now', async (t) => {
  const { capacity } = t.context;
  const hostId = await hostFor(t.context, 2);
  const [reserved, held] = [newSandboxId(), newSandboxId()];
  await capacity.reserve(hostId, reserved, one, LONG_MS);
  await capacity.reserve(hostId, held, one, LONG_MS);
  await capacity.hold(hostId, held, one);
  for (const id of [reserved, held, newSandboxId()]) await capacity.releaseReservation(hostId, id);
  t.deepEqual(await capacity.used(hostId), one);
  await capacity.release(hostId, held);
  await capacity.release(hostId, held);
  t.deepEqual(await capacity.used(hostId), { memoryMib: 0, vcpus: 0 });
});

test('repeating the reservation of held capacity does not make it lapse', async (t) => {
  const { capacity, redis } = t.context;
  const hostId = await hostFor(t.context, 2);
  const held = newSandboxId();
  await capacity.hold(hostId, held, one);
  t.true(await capacity.reserve(hostId, held, one, LONG_MS));
  t.is(await redis.hget(keys.sandboxCapacity(hostId), held), '0 1024 1');
});

test('replacing what a host holds keeps its reservations', async (t) => {
  const { capacity } = t.context;
  const hostId = await hostFor(t.context, 8);
  const [gone, kept, onItsWay, arrived] = Array.from({ length: 4 }, newSandboxId) as [
    string,
    string,
    string,
    string,
  ];
  await capacity.hold(hostId, gone, one);
  await capacity.hold(hostId, kept, one);
  await capacity.reserve(hostId, onItsWay, one, LONG_MS);
  await capacity.reserve(hostId, arrived, one, LONG_MS);
  await capacity.replace(hostId, [
    { sandboxId: kept, memoryMib: 2048, vcpus: 2 },
    { sandboxId: arrived, ...one },
  ]);
  t.deepEqual(await capacity.used(hostId), { memoryMib: 2048 + 1024 + 1024, vcpus: 4 });
  await capacity.replace(hostId, []);
  t.deepEqual(await capacity.used(hostId), one);
  t.true(await capacity.reserve(hostId, newSandboxId(), { ...one, vcpus: 7 }, LONG_MS));
});

test('after Redis was emptied, announcing and replacing restore the entry of a host', async (t) => {
  const { capacity, redis } = t.context;
  const hostId = await hostFor(t.context, 2);
  const id = newSandboxId();
  await capacity.hold(hostId, id, one);
  await redis.del(keys.sandboxCapacity(hostId));
  t.false(await capacity.reserve(hostId, newSandboxId(), one, LONG_MS));
  await capacity.announce(hostId, { memoryMib: 2048, vcpus: 2 });
  await capacity.replace(hostId, [{ sandboxId: id, ...one }]);
  t.true(await capacity.reserve(hostId, newSandboxId(), one, LONG_MS));
  t.false(await capacity.reserve(hostId, newSandboxId(), one, LONG_MS));
});

test('an entry that Berth did not write is ignored', async (t) => {
  const { capacity, redis } = t.context;
  const hostId = await hostFor(t.context, 1);
  await redis.hset(keys.sandboxCapacity(hostId), newSandboxId(), 'x -1');
  t.true(await capacity.reserve(hostId, newSandboxId(), one, LONG_MS));
});

test.serial(
  'an announcement writes nothing that is there already, and tells when the host was lost',
  async (t) => {
    const { capacity, redis } = t.context;
    const writes = async (): Promise<string | undefined> =>
      /rdb_changes_since_last_save:(\d+)/u.exec(await redis.info('persistence'))?.[1];
    const hostId = newHostId();
    t.true(await capacity.announce(hostId, one));
    const before = await writes();
    t.false(await capacity.announce(hostId, one));
    t.is(await writes(), before);
    t.false(await capacity.announce(hostId, { memoryMib: 2048, vcpus: 2 }));
    t.true(await capacity.reserve(hostId, newSandboxId(), { memoryMib: 2048, vcpus: 2 }, LONG_MS));
    await capacity.forget(hostId);
    t.true(await capacity.announce(hostId, one));
  },
);
