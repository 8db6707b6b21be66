/* Snapshots of a host's sandboxes, with machines in memory: what is made, lost, and in the way. */
import { randomUUID } from 'node:crypto';
import anyTest from 'ava';
import { interceptFailpoints } from '../../../../agent/system/failpoint.ts';
import type { NewFromSnapshot } from '../../../../agent/sandboxes/lifecycle/new-sandbox.ts';
import type { SandboxActor } from '../../../../agent/sandboxes/lifecycle/sandbox-actor.ts';
import type { Snapshot } from '../../../../agent/sandboxes/snapshots/snapshot.ts';
import { Snapshots } from '../../../../shared/directory/snapshots.ts';
import { SYSTEM_LIMITS } from '../../../../agent/system/limits.ts';
import { parseNetworkPolicy } from '../../../../shared/network/parse-policy.ts';
import { UNKNOWN_HOOK } from '../../../helpers/in-memory-guest.ts';
import { startRedis } from '../../../helpers/redis.ts';
import { TimedSandboxes } from '../../../helpers/timed-sandboxes.ts';

const { serial: test } = anyTest;
const redis = await startRedis();
test.afterEach.always(() => interceptFailpoints(undefined));
test.after.always(() => redis[Symbol.asyncDispose]());

const FILE = '/root/disk';
const directory = (): Snapshots => new Snapshots(redis.redis, 'local-test');

const refOf = ({ id, accountId }: SandboxActor) => ({ accountId, sandboxId: id });

async function snapshotOf(host: TimedSandboxes, source: SandboxActor, name = 'kept') {
  const wanted = { snapshotId: randomUUID(), name };
  const snapshot = await host.hosted.creator.snapshot(refOf(source), wanted);
  await snapshot.made;
  return snapshot;
}

const fromSnapshot = (
  { row }: Snapshot,
  name: string,
  changes: Partial<NewFromSnapshot> = {},
): NewFromSnapshot => ({
  ...{ sandboxId: randomUUID(), accountId: row.accountId, snapshotId: row.id },
  ...{ config: { name }, environment: undefined, network: undefined },
  ...changes,
});

test('a hook runs in copies of memory only; a guest that knows none is thawed all the same', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const source = await host.create({ copyHook: 'true' });
  await host.until(source, 'running');
  t.is(source.row.hook, undefined);
  const snapshot = await snapshotOf(host, source);
  for (const [name, copyHook, hook] of [
    ['inherits', undefined, { status: 'completed', exitCode: 0 }],
    ['replaces', UNKNOWN_HOOK, { status: 'unsupported' }],
    ['removes', '', undefined],
  ] as const) {
    const changes = { config: { name, ...(copyHook === undefined ? {} : { copyHook }) } };
    const child = await host.hosted.creator.createFromSnapshot(
      fromSnapshot(snapshot, name, changes),
    );
    await host.until(child, 'running');
    if (hook === undefined) t.is(child.row.hook, undefined);
    else t.like(child.row.hook, hook);
    t.false(host.hosted.machines.vms.get(child.row.vmId)?.guest.isFrozen ?? true);
    await child.stop();
    await host.until(child, 'stopped');
    await child.start();
    t.is(child.row.hook, undefined);
    await host.until(child, 'running');
  }
});

const snapshotRefOf = ({ row }: Snapshot) => ({ accountId: row.accountId, snapshotId: row.id });

for (const state of ['running', 'paused', 'stopped'] as const) {
  test(`sandboxes are created from a snapshot of one that was ${state}`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis);
    const { creator, machines } = host.hosted;
    const source = await host.create({ memSizeMib: 512, idleTtlSeconds: 77 });
    machines.writeFile(source.row.vmId, FILE, 'one');
    if (state === 'paused') await source.pause();
    if (state === 'stopped') await source.stop();
    await host.until(source, state);
    const snapshot = await snapshotOf(host, source);
    t.like(snapshot.record, { status: 'ready', hasMemory: state !== 'stopped', name: 'kept' });
    t.is(source.row.state, state);
    const children = [];
    for (const name of ['first', 'second']) {
      const child = await creator.createFromSnapshot(fromSnapshot(snapshot, name));
      await host.until(child, 'running');
      t.like(child.row, { snapshotId: snapshot.row.id, parentId: undefined });
      t.like(child.row.config, { name, memSizeMib: 512, idleTtlSeconds: 77 });
      t.is(machines.readFile(child.row.vmId, FILE), 'one');
      machines.writeFile(child.row.vmId, FILE, name);
      children.push(child);
    }
    t.is(machines.readFile(snapshot.row.id, FILE), 'one', 'no sandbox changes it');
    t.is(new Set(children.map(({ row }) => row.uid)).size, 2);
    t.deepEqual(machines.faults, []);
  });
}

test('what the creator names replaces what the snapshot has, and secrets are kept', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { creator } = host.hosted;
  const rule = { target: 'api.example', transform: { headers: { 'x-key': 'a-secret' } } };
  const policy = parseNetworkPolicy({ egress: { default: 'deny', allow: [rule] } });
  const given = { ...host.hosted.newSandbox(), network: policy, environment: { COLOUR: 'blue' } };
  const source = await creator.create(given);
  await host.until(source, 'running');
  const snapshot = await snapshotOf(host, source);
  t.false(JSON.stringify(snapshot.record).includes('a-secret'));
  const same = await creator.createFromSnapshot(fromSnapshot(snapshot, 'same'));
  await host.until(same, 'running');
  t.deepEqual(same.row.environment, { COLOUR: 'blue' });
  t.deepEqual(same.row.network, source.row.network);
  t.not(same.row.networkSealed, undefined);
  t.deepEqual(host.hosted.policies.applied.get(same.row.slot ?? -1), policy);
  const other = await creator.createFromSnapshot(
    fromSnapshot(snapshot, 'other', {
      config: { name: 'other', maxTtlSeconds: 61 },
      environment: { COLOUR: 'red' },
      network: parseNetworkPolicy({ egress: { default: 'deny' } }),
    }),
  );
  t.deepEqual(other.row.environment, { COLOUR: 'red' });
  t.deepEqual(other.row.network, { egress: { default: 'deny' } });
  t.is(other.row.config.maxTtlSeconds, 61);
});

test('a snapshot is deleted after what stands on it, and its source after it', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { registry, creator, machines, accountId } = host.hosted;
  const source = await host.create();
  const snapshot = await snapshotOf(host, source);
  const child = await creator.createFromSnapshot(fromSnapshot(snapshot, 'child'));
  await host.until(child, 'running');
  const inTheWay = await registry.deleteSnapshot(snapshotRefOf(snapshot));
  t.deepEqual(inTheWay, { count: 1, diskIds: [child.row.rootDiskId] });
  for (const each of [source, child]) {
    await each.stop();
    await host.until(each, 'stopped');
  }
  t.deepEqual(await registry.delete(refOf(source)), {
    count: 2,
    diskIds: [child.row.rootDiskId, snapshot.row.rootDiskId],
  });
  const stranger = { accountId: 'acct-00000000000000ff', snapshotId: snapshot.row.id };
  await t.throwsAsync(registry.deleteSnapshot(stranger), { code: 'not_found' });
  await t.throwsAsync(
    creator.createFromSnapshot({
      ...fromSnapshot(snapshot, 'stolen'),
      accountId: stranger.accountId,
    }),
    { code: 'not_found' },
  );
  t.is(await registry.delete(refOf(child)), undefined);
  t.is((await directory().get(accountId, snapshot.row.id))?.status, 'ready');
  t.is(await registry.deleteSnapshot(snapshotRefOf(snapshot)), undefined);
  t.is(await directory().get(accountId, snapshot.row.id), undefined);
  await t.throwsAsync(creator.createFromSnapshot(fromSnapshot(snapshot, 'late')), {
    code: 'not_found',
  });
  t.is(await registry.delete(refOf(source)), undefined);
  await host.time.until('nothing to be left', () => machines.list().length === 0);
});

test('a snapshot that cannot be made says why, and keeps neither files nor name', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted } = host;
  const source = await host.create();
  const { gate } = hosted;
  hosted.gate = async (point, id) => {
    if (point === 'before copy memory') throw new Error('the storage is full');
    await gate(point, id);
  };
  const snapshot = await snapshotOf(host, source);
  hosted.gate = gate;
  t.like(snapshot.record, { status: 'failed', hasMemory: false });
  t.regex(snapshot.record.failureReason ?? '', /does not answer/u);
  t.deepEqual(hosted.machines.list(), [source.id]);
  t.is(await directory().findByName(hosted.accountId, 'kept'), undefined);
  await t.throwsAsync(hosted.creator.createFromSnapshot(fromSnapshot(snapshot, 'child')), {
    code: 'snapshot_not_ready',
  });
  const again = await snapshotOf(host, source);
  t.is((await directory().findByName(hosted.accountId, 'kept'))?.id, again.row.id);
  t.is(await hosted.registry.deleteSnapshot(snapshotRefOf(snapshot)), undefined);
  t.deepEqual((await directory().list(hosted.accountId, {})).items.length, 1);
});

test('a snapshot whose end cannot be journalled fails once it can, and is deleted', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const source = await host.create();
  const failing = new Set(['before journal snapshot ready', 'before journal snapshot failed']);
  interceptFailpoints(async (point) => {
    if (failing.delete(point)) throw new Error('the disk is full');
  });
  const wanted = { snapshotId: randomUUID(), name: 'kept' };
  const snapshot = await hosted.creator.snapshot(refOf(source), wanted);
  await time.until('both failures', () => failing.size === 0);
  const deleting = (): Promise<unknown> => hosted.registry.deleteSnapshot(snapshotRefOf(snapshot));
  await t.throwsAsync(deleting(), { code: 'snapshot_not_ready' });
  await time.pass(SYSTEM_LIMITS.removalRetryMsMax);
  await time.until('its end', () => snapshot.record.status === 'failed');
  t.is(await deleting(), undefined);
  t.deepEqual(hosted.machines.list(), [source.id]);
});

test('a snapshot that its creator gave up is taken back, before and after it was made', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { registry, creator, accountId, machines } = host.hosted;
  const source = await host.create();
  const late = { snapshotId: randomUUID(), name: 'late' };
  await registry.discardSnapshot({ accountId, snapshotId: late.snapshotId });
  await t.throwsAsync(creator.snapshot(refOf(source), late), { code: 'cancelled' });
  const snapshot = await snapshotOf(host, source);
  await t.throwsAsync(
    creator.snapshot(refOf(source), { snapshotId: snapshot.row.id, name: 'again' }),
    { code: 'outcome_unknown' },
  );
  await registry.discardSnapshot(snapshotRefOf(snapshot));
  t.deepEqual(machines.list(), [source.id]);
  t.is(await directory().get(accountId, snapshot.row.id), undefined);
});

test('a sandbox that is given up before its snapshot is copied is not copied', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const { creator, accountId, machines } = hosted;
  const source = await host.create();
  const snapshot = await snapshotOf(host, source);
  const given = fromSnapshot(snapshot, 'child');
  const goesOn = Promise.withResolvers<void>();
  hosted.mounts.holding = () => goesOn.promise;
  const { gate } = hosted;
  let copies = 0;
  hosted.gate = async (point, at) => {
    if (point === 'before copy disk at rest') copies += 1;
    await gate(point, at);
  };
  const refused = t.throwsAsync(creator.createFromSnapshot(given), { code: 'cancelled' });
  await time.settle();
  const discarding = creator.discard({ accountId, sandboxId: given.sandboxId });
  await time.settle();
  goesOn.resolve();
  await refused;
  await discarding;
  t.is(copies, 0);
  t.deepEqual(machines.list().toSorted(), [source.id, snapshot.row.id].toSorted());
});

for (const moment of ['waits for another copy', 'is journalled'] as const) {
  test(`a snapshot that its creator gives up while it ${moment} leaves nothing`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis);
    const { hosted, time } = host;
    const { registry, creator, accountId, machines } = hosted;
    const source = await host.create();
    const waits = moment === 'waits for another copy';
    const goesOn = Promise.withResolvers<void>();
    const { gate } = hosted;
    const fork = { sandboxId: randomUUID(), name: 'fork', checkpoint: undefined };
    if (waits) {
      hosted.gate = (point, at) =>
        point === 'before copy disk' ? goesOn.promise : gate(point, at);
    } else {
      interceptFailpoints(async (point) => {
        if (point === 'before journal snapshot') await goesOn.promise;
      });
    }
    const forking = waits ? creator.fork(refOf(source), fork) : undefined;
    await time.settle();
    const given = { snapshotId: randomUUID(), name: 'kept' };
    const making = creator.snapshot(refOf(source), given);
    const outcome = making.then(
      () => 'made',
      ({ code }: { code: string }) => code,
    );
    await time.settle();
    const discarding = registry.discardSnapshot({ accountId, snapshotId: given.snapshotId });
    await time.settle();
    goesOn.resolve();
    await Promise.all([forking, discarding]);
    t.is(await outcome, waits ? 'cancelled' : 'made');
    await time.settle();
    t.deepEqual(
      machines.list().toSorted(),
      (waits ? [source.id, fork.sandboxId] : [source.id]).toSorted(),
    );
    t.deepEqual((await directory().list(accountId, {})).items, []);
    t.deepEqual(await hosted.journalledSnapshots(), []);
  });
}

test('an emptied directory is filled again, with names', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { registry, accountId } = host.hosted;
  const snapshot = await snapshotOf(host, await host.create());
  await redis.redis.flushall();
  await registry.republish();
  t.deepEqual(await directory().findByName(accountId, 'kept'), snapshot.record);
});

test('nobody sees a snapshot that may still be refused', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted } = host;
  const { registry, creator, accountId } = hosted;
  const source = await host.create();
  const copied = Promise.withResolvers<void>();
  const { gate } = hosted;
  hosted.gate = (point, at) => (point === 'before copy disk' ? copied.promise : gate(point, at));
  const fork = { sandboxId: randomUUID(), name: 'fork', checkpoint: undefined };
  const forking = creator.fork(refOf(source), fork);
  await host.time.settle();
  const wanted = { snapshotId: randomUUID(), name: 'kept' };
  const making = creator.snapshot(refOf(source), wanted); // Waits for the fork.
  await host.time.settle();
  await registry.republish();
  t.is(await directory().get(accountId, wanted.snapshotId), undefined);
  copied.resolve();
  await forking;
  await (
    await making
  ).made;
  t.is((await directory().get(accountId, wanted.snapshotId))?.status, 'ready');
});

for (const state of ['running', 'stopped'] as const) {
  test(`sandboxes from a snapshot of one that was ${state} take prewarmed machines of it`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis, { prewarmedMax: 3 });
    const { hosted, time } = host;
    const { registry, creator, machines } = hosted;
    const source = await host.create();
    machines.writeFile(source.row.vmId, FILE, 'one');
    if (state === 'stopped') await source.stop();
    await host.until(source, state);
    const snapshot = await snapshotOf(host, source);
    const taken = new Set([source.row.vmId]);
    const ahead = (): string | undefined =>
      [...machines.vms.keys()].find(
        (vmId) => !taken.has(vmId) && machines.readFile(vmId, FILE) === 'one',
      );
    const first = await creator.createFromSnapshot(fromSnapshot(snapshot, 'first'));
    await host.until(first, 'running');
    taken.add(first.row.vmId);
    await time.pass(2_000);
    await time.until('a prewarmed machine', () => ahead() !== undefined);
    await time.settle();
    const second = await creator.createFromSnapshot(fromSnapshot(snapshot, 'second'));
    await host.until(second, 'running');
    t.not(second.row.vmId, second.id, 'it took a prewarmed machine');
    t.is(machines.readFile(second.row.vmId, FILE), 'one');
    taken.add(second.row.vmId);
    await time.pass(2_000);
    await time.until('another one', () => ahead() !== undefined);
    for (const each of [first, second]) {
      await each.stop();
      await host.until(each, 'stopped');
      await registry.delete(refOf(each));
    }
    t.is(await registry.deleteSnapshot(snapshotRefOf(snapshot)), undefined);
    await time.pass(2_000);
    await time.until('nothing of it', () => ahead() === undefined);
    t.deepEqual(machines.faults, []);
  });
}

test('a snapshot whose failure cannot be journalled keeps no agent from starting', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const source = await host.create();
  interceptFailpoints(async (point) => {
    if (point === 'before journal snapshot ready') await new Promise(() => {});
  });
  await hosted.creator.snapshot(refOf(source), { snapshotId: randomUUID(), name: 'kept' });
  await time.settle();
  await hosted.killAgent(time);
  let isFull = true;
  interceptFailpoints(async (point) => {
    if (isFull && point === 'before journal snapshot failed') throw new Error('the disk is full');
  });
  const agent = { isOver: false };
  const starting = hosted.startAgent().finally(() => (agent.isOver = true));
  while (!agent.isOver) await time.pass(100, 100);
  await starting;
  t.is(host.find(source.id).row.state, 'running');
  const state = async () => (await hosted.journalledSnapshots())[0]?.state;
  t.is(await state(), 'creating');
  isFull = false;
  for (let left = 100; left > 0 && (await state()) !== 'failed'; left -= 1) await time.pass(1_000);
  t.is(await state(), 'failed');
});

/** Makes a snapshot, creates a sandbox of it, and deletes both. */
async function useSnapshot(host: TimedSandboxes, source: SandboxActor): Promise<void> {
  const { registry, creator } = host.hosted;
  const snapshot = await creator.snapshot(refOf(source), {
    snapshotId: randomUUID(),
    name: 'kept',
  });
  await snapshot.made;
  const child = await creator.createFromSnapshot(fromSnapshot(snapshot, 'child'));
  await child.settled(60_000);
  await child.stop();
  await child.settled(60_000);
  await registry.delete(refOf(child));
  await registry.deleteSnapshot(snapshotRefOf(snapshot));
}

test('killed at whatever point, an agent leaves whole snapshots and nothing else', async (t) => {
  t.timeout(120_000);
  const points: string[] = [];
  await using first = await TimedSandboxes.open(redis.redis);
  const source = await first.create();
  interceptFailpoints(async (point) => void points.push(point));
  await useSnapshot(first, source);
  interceptFailpoints(undefined);
  await first[Symbol.asyncDispose]();
  const ofSnapshots = new Set(points.filter((point) => point.includes('snapshot')));
  t.true(ofSnapshots.size >= 12, [...ofSnapshots].join(', '));
  for (const point of ofSnapshots) {
    await using host = await TimedSandboxes.open(redis.redis);
    const { hosted, time } = host;
    const before = await host.create();
    let isReached = false;
    interceptFailpoints(async (at) => {
      if (at === point) isReached = true;
      if (isReached) await new Promise(() => {});
    });
    useSnapshot(host, before).catch(() => undefined);
    await time.until(point, () => isReached);
    await time.settle();
    await hosted.killAgent(time);
    interceptFailpoints(undefined);
    await hosted.startAgent();
    await time.settle();
    await host.until(host.find(before.id), 'running');
    const { items } = await directory().list(hosted.accountId, {});
    t.true(items.length <= 1, point);
    for (const record of items) {
      if (record.status === 'failed') t.regex(record.failureReason ?? '', /agent/u, point);
      else t.is(record.status, 'ready', point);
    }
    const ready = items.filter(({ status }) => status === 'ready');
    for (const { id, accountId } of ready) {
      t.not(hosted.machines.disks.get(id), undefined, point);
      const snapshot = { accountId, snapshotId: id };
      const other = { ...snapshot, sandboxId: randomUUID(), config: { name: 'other' } };
      const child = await hosted.creator.createFromSnapshot({
        ...{ ...other, environment: undefined, network: undefined },
      });
      await host.until(child, 'running');
    }
    const rows = await hosted.journalledSandboxes();
    const kept = new Set([...rows.map(({ vmId }) => vmId), ...ready.map(({ id }) => id)]);
    t.deepEqual(
      hosted.machines.list().filter((id) => !kept.has(id)),
      [],
      point,
    );
    t.deepEqual(hosted.machines.faults, [], point);
  }
});
