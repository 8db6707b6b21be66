/* Which sandboxes a host has, and what of it they hold, with machines and slots in memory. */
import { randomUUID } from 'node:crypto';
import anyTest from 'ava';
import type { SandboxRef } from '../../../agent/sandboxes/sandbox-registry.ts';
import { copyMsMax } from '../../../agent/sandboxes/lifecycle/copy-gate.ts';
import { interceptFailpoints } from '../../../agent/system/failpoint.ts';
import { newDiskId } from '../../../shared/ids.ts';
import { SYSTEM_LIMITS } from '../../../agent/system/limits.ts';
import { startRedis } from '../../helpers/redis.ts';
import type { NetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import { TimedSandboxes } from '../../helpers/timed-sandboxes.ts';

const { serial: test } = anyTest;
const redis = await startRedis();
test.after.always(() => redis[Symbol.asyncDispose]());

const fork = (name: string) => ({ sandboxId: randomUUID(), name, checkpoint: undefined });

test('an id is created once, and never after it was discarded', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { registry, creator, accountId } = host.hosted;
  const { row } = await host.create();
  const again = { ...host.hosted.newSandbox(), sandboxId: row.id };
  await t.throwsAsync(creator.create(again), { code: 'outcome_unknown' });
  const late = host.hosted.newSandbox();
  await creator.discard({ accountId, sandboxId: late.sandboxId });
  await t.throwsAsync(creator.create(late), { code: 'cancelled' });
  t.deepEqual([...registry.states.values()], ['running']);
});

test('another account finds and discards nothing', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { registry, creator } = host.hosted;
  const { id } = await host.create();
  const ref = { accountId: 'acct-00000000000000ff', sandboxId: id };
  t.throws(() => registry.find(ref), { code: 'not_found' });
  await creator.discard(ref);
  await t.throwsAsync(creator.fork(ref, fork('stolen')), { code: 'not_found' });
  await t.throwsAsync(registry.delete(ref), { code: 'not_found' });
  t.is(host.find(id).row.state, 'running');
});

test('what a full host refuses leaves nothing, and what rests makes room', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis, { slotsMax: 1 });
  const { registry, machines, namespaces } = host.hosted;
  const first = await host.create();
  await t.throwsAsync(host.create(), { code: 'no_capacity' });
  t.deepEqual([...registry.states.values()], ['running']);
  t.deepEqual(machines.list(), [first.id]);
  await first.pause();
  await host.until(first, 'paused');
  await host.time.until('its slot to be free', () => namespaces.present.size === 0);
  const second = await host.create();
  t.is(second.row.uid, first.row.uid + 1, 'the user of what was refused is free again');
  await t.throwsAsync(first.resume(), { code: 'no_capacity' });
  t.is(first.row.state, 'paused');
});

test('the next agent takes up every row of one that was killed, and nothing else', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const { creator, machines, namespaces } = hosted;
  const [running, paused, stopped] = [
    await host.create(),
    await host.create(),
    await host.create(),
  ];
  await paused.pause();
  await stopped.stop();
  await host.until(paused, 'paused');
  await host.until(stopped, 'stopped');
  const { gate } = hosted;
  hosted.gate = async (point, id) => {
    if (point === 'before boot guest' || point === 'before copy disk') await new Promise(() => {});
    await gate(point, id);
  };
  const pending = await creator.create(hosted.newSandbox());
  await time.until('its machine', () => machines.vms.has(pending.id));
  const orphan = fork('orphan');
  const source = { accountId: hosted.accountId, sandboxId: running.id };
  creator.fork(source, orphan).catch(() => undefined);
  await time.settle();
  const machine = machines.vms.get(running.id);
  await hosted.killAgent(time);
  hosted.gate = gate;
  await hosted.startAgent();
  await host.until(host.find(pending.id), 'running');
  await host.until(host.find(running.id), 'running');
  t.is(machines.vms.get(running.id), machine, 'its machine ran on');
  t.is(host.find(paused.id).row.state, 'paused');
  t.is(host.find(stopped.id).row.state, 'stopped');
  t.throws(() => host.find(orphan.sandboxId), { code: 'not_found' });
  t.deepEqual([...hosted.registry.states.values()].toSorted(), [
    'paused',
    'running',
    'running',
    'stopped',
  ]);
  const slots = [running, pending].map(({ id }) => host.find(id).row.slot);
  t.deepEqual([...namespaces.present].map(String).toSorted(), slots.map(String).toSorted());
  await host.find(paused.id).resume();
  await host.until(host.find(paused.id), 'running');
  t.deepEqual(machines.faults, []);
});

for (const [state, cut] of [
  ['pausing', 'before end paused machine'],
  ['pending_resume', 'before launch machine'],
] as const) {
  test(`storage that fails when the next agent finds it ${state} costs no memory`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis);
    const { hosted, time } = host;
    const { id } = await host.create();
    if (state === 'pending_resume') {
      await host.find(id).pause();
      await host.until(host.find(id), 'paused');
    }
    const { gate } = hosted;
    const reached = Promise.withResolvers<void>();
    hosted.gate = async (point, at) => {
      if (point !== cut) return gate(point, at);
      reached.resolve();
      await new Promise(() => {});
    };
    await (state === 'pausing' ? host.find(id).pause() : host.find(id).resume());
    await reached.promise;
    t.is(host.find(id).row.state, state);
    await hosted.killAgent(time);
    hosted.gate = async (point, at) => {
      if (point === 'read checkpoint') throw new Error('the storage does not answer');
      await gate(point, at);
    };
    await hosted.startAgent();
    await host.until(host.find(id), 'paused');
    hosted.gate = gate;
    await host.find(id).resume();
    await host.until(host.find(id), 'running');
    t.deepEqual(hosted.machines.faults, []);
  });
}

test('a pause that waits for requests when its agent is killed is carried out by the next', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const network: NetworkPolicy = { egress: { default: 'allow', drain_on_pause: ['*.example'] } };
  const { id } = await hosted.creator.create({ ...hosted.newSandbox(), network });
  await host.until(host.find(id), 'running');
  const waits: (() => void)[] = [];
  hosted.policies.draining = () => new Promise((resolve) => waits.push(resolve));
  await host.find(id).pause();
  const { checkpoint } = host.find(id).row;
  await hosted.killAgent(time);
  await hosted.startAgent();
  await time.until('the wait of the next agent', () => waits.length === 2);
  t.like(host.find(id).row, { state: 'draining', checkpoint });
  waits[1]?.();
  await host.until(host.find(id), 'paused');
  await host.find(id).resume();
  await host.until(host.find(id), 'running');
  t.deepEqual(hosted.machines.faults, []);
});

/** Kills the agent while the guest stands still, and starts the next one. */
async function killWhileFrozen(host: TimedSandboxes, id: string, action: 'fork' | 'pause') {
  const { hosted, time } = host;
  const { gate } = hosted;
  const cut = action === 'fork' ? 'before copy memory' : 'before save memory';
  const reached = Promise.withResolvers<void>();
  hosted.gate = async (point, at) => {
    if (point !== cut) return gate(point, at);
    reached.resolve();
    await new Promise(() => {});
  };
  const ref = { accountId: hosted.accountId, sandboxId: id };
  if (action === 'fork') hosted.creator.fork(ref, fork('copy')).catch(() => undefined);
  else await host.find(id).pause();
  await reached.promise;
  await hosted.killAgent(time);
  hosted.gate = gate;
}

for (const action of ['fork', 'pause'] as const) {
  test(`processes go on, however slowly, that stood still for a ${action} when the agent was killed`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis);
    const { hosted, time } = host;
    const { id } = await host.create();
    await killWhileFrozen(host, id, action);
    const guest = hosted.machines.vms.get(id)?.guest;
    t.true(guest?.isFrozen);
    const { gate } = hosted;
    let failures = 0;
    hosted.gate = async (point, at) => {
      if (point === 'before continue machine' && failures < 2) {
        failures += 1;
        throw new Error('the machine does not answer');
      }
      await gate(point, at);
    };
    if (guest !== undefined) guest.isSilent = true;
    await hosted.startAgent();
    await host.until(host.find(id), 'running');
    await time.pass(30_000);
    t.is(failures, 2);
    t.true(guest?.isFrozen, 'it was not reached yet');
    if (guest !== undefined) guest.isSilent = false;
    await time.pass(10_000);
    await time.until('its processes', () => guest?.isFrozen === false);
    t.is(host.find(id).row.state, 'running');
    t.deepEqual(hosted.machines.faults, []);
  });
}

test('a machine that nothing continues after its agent was killed in a fork is ended', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const { id, row } = await host.create();
  await killWhileFrozen(host, id, 'fork');
  const { gate } = hosted;
  hosted.gate = async (point, at) => {
    if (point === 'before continue machine') throw new Error('the machine does not answer');
    await gate(point, at);
  };
  await hosted.startAgent();
  t.is(host.find(id).row.state, 'running');
  await time.pass(copyMsMax(row.config.memSizeMib) + 1_000);
  await host.until(host.find(id), 'failed');
  t.is(host.find(id).row.exitReason, 'killed_by_host');
  await host.find(id).start();
  await host.until(host.find(id), 'running');
  t.deepEqual(hosted.machines.faults, []);
});

test('what is of no sandbox and cannot be removed keeps its user, and no agent from starting', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const { machines } = hosted;
  const { id, row } = await host.create();
  await killWhileFrozen(host, id, 'fork');
  const orphan = machines.list().find((each) => each !== id) ?? '';
  t.is(machines.disks.get(orphan)?.uid, row.uid + 1);
  const { gate } = hosted;
  let failures = 0;
  hosted.gate = async (point, at) => {
    if (point === 'before remove sandbox' && failures < 2) {
      failures += 1;
      throw new Error('the directory is busy');
    }
    await gate(point, at);
  };
  await hosted.startAgent();
  await host.until(host.find(id), 'running');
  t.is((await host.create({ name: 'second' })).row.uid, row.uid + 2);
  await time.pass(10_000);
  await time.until('nothing to be left', () => !machines.list().includes(orphan));
  t.is(failures, 2);
  t.is((await host.create({ name: 'third' })).row.uid, row.uid + 1, 'its user is free again');
  t.deepEqual(machines.faults, []);
});

test('a sandbox whose end cannot be journalled keeps no other from being taken up', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const [ended, running] = [await host.create(), await host.create()];
  await hosted.killAgent(time);
  hosted.machines.vms.get(ended.id)?.stop('killed');
  let failures = 0;
  interceptFailpoints(async (point) => {
    if (point !== 'before journal failed' || failures === 3) return;
    failures += 1;
    throw new Error('the disk is full');
  });
  t.teardown(() => interceptFailpoints(undefined));
  await hosted.startAgent();
  t.is(host.find(running.id).row.state, 'running');
  await time.pass(SYSTEM_LIMITS.removalRetryMsMax);
  await host.until(host.find(ended.id), 'failed');
  t.is(failures, 3);
  await host.find(ended.id).start();
  await host.until(host.find(ended.id), 'running');
  t.deepEqual(hosted.machines.faults, []);
});

for (const outcome of ['is refused', 'is made'] as const) {
  test(`a sandbox is discarded while a fork of it waits that ${outcome}`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis);
    const { hosted, time } = host;
    const { registry, creator, accountId } = hosted;
    const { id } = await host.create();
    const ref = { accountId, sandboxId: id };
    const copied = Promise.withResolvers<void>();
    const { gate } = hosted;
    hosted.gate = (point, at) => (point === 'before copy disk' ? copied.promise : gate(point, at));
    const child = fork('child');
    const forking = creator.fork(ref, child);
    const settled = forking.then(
      () => 'is made',
      () => 'is refused',
    );
    await time.settle();
    const discarding = creator.discard(ref);
    await time.settle();
    if (outcome === 'is made') copied.resolve();
    else copied.reject(new Error('the storage does not answer'));
    t.is(await settled, outcome);
    await discarding;
    const left = registry.states.size;
    if (outcome === 'is made') {
      t.is(left, 2, 'the fork stands in its way');
      await host.until(host.find(child.sandboxId), 'running');
    } else {
      t.is(left, 0, 'nothing of it remains');
      t.deepEqual(hosted.machines.list(), []);
    }
  });
}

/** Begins a fork whose copy goes on until the test lets it; the next ones wait for it. */
async function beginSlowFork(host: TimedSandboxes, ref: SandboxRef) {
  const { hosted, time } = host;
  const { gate } = hosted;
  const goesOn = Promise.withResolvers<void>();
  let copies = 0;
  hosted.gate = async (point, at) => {
    if (point !== 'before copy disk') return gate(point, at);
    copies += 1;
    await goesOn.promise;
  };
  const slow = fork('slow');
  const forking = hosted.creator.fork(ref, slow);
  await time.until('its copy', () => copies === 1);
  return { slow, forking, copies: () => copies, letGo: goesOn.resolve };
}

test('a fork that is given up while it waits for another copy is not copied', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const { registry, creator, machines, accountId } = hosted;
  const { id, row } = await host.create();
  const ref = { accountId, sandboxId: id };
  const { slow, forking, copies, letGo } = await beginSlowFork(host, ref);
  const late = fork('late');
  const refused = t.throwsAsync(creator.fork(ref, late), { code: 'cancelled' });
  await time.settle();
  const discarding = creator.discard({ accountId, sandboxId: late.sandboxId });
  await time.settle();
  letGo();
  await forking;
  await refused;
  await discarding;
  t.is(copies(), 1);
  t.false(registry.has(late.sandboxId));
  t.deepEqual(machines.list().toSorted(), [id, slow.sandboxId].toSorted());
  const journalled = await hosted.journalledSandboxes();
  t.deepEqual(journalled.map((each) => each.id).toSorted(), [id, slow.sandboxId].toSorted());
  await host.until(host.find(slow.sandboxId), 'running');
  t.is((await host.create()).row.uid, row.uid + 2, 'its user is free again');
  t.deepEqual(machines.faults, []);
});

test('a fork that is given up while it is copied is removed', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const { id } = await host.create();
  const ref = { accountId: hosted.accountId, sandboxId: id };
  const { slow, forking, letGo } = await beginSlowFork(host, ref);
  const discarding = hosted.creator.discard({ ...ref, sandboxId: slow.sandboxId });
  await time.settle();
  letGo();
  await forking;
  await discarding;
  await time.until('nothing of it', () => hosted.machines.list().length === 1);
  t.deepEqual([...hosted.registry.states.values()], ['running']);
  t.deepEqual(hosted.machines.faults, []);
});

test('a fork that has waited has what its source has when it is copied', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const source = await host.create({ idleTtlSeconds: 0 });
  const ref = { accountId: hosted.accountId, sandboxId: source.id };
  const { forking, letGo } = await beginSlowFork(host, ref);
  const changing = source.setNetwork({ egress: { default: 'deny' } });
  const late = fork('late');
  const waiting = hosted.creator.fork(ref, late);
  await time.settle();
  await source.setLimits({ timeoutSeconds: undefined, idleTtlSeconds: 77 });
  letGo();
  await Promise.all([forking, changing]);
  const { row, record } = await waiting;
  t.like(row.config, { name: 'late', idleTtlSeconds: 77 });
  t.deepEqual(row.network, { egress: { default: 'deny' } });
  t.deepEqual(record.network, row.network);
  const journalled = await hosted.journalledSandboxes();
  t.like(
    journalled.find(({ id }) => id === late.sandboxId),
    { network: row.network },
  );
});

test('a fork holds the disks that its source mounts when it is copied, or is refused', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const source = await host.create();
  await source.stop();
  await host.until(source, 'stopped');
  const late = fork('late');
  const goesOn = Promise.withResolvers<void>();
  hosted.mounts.holding = async (sandboxId) => {
    if (sandboxId === late.sandboxId) await goesOn.promise;
  };
  const ref = { accountId: hosted.accountId, sandboxId: source.id };
  const refused = t.throwsAsync(hosted.creator.fork(ref, late), { code: 'unavailable' });
  await time.settle();
  const mount = { diskId: newDiskId(), path: '/mnt/data', subdirectory: '', readOnly: false };
  await source.start([mount]);
  await host.until(source, 'running');
  goesOn.resolve();
  await refused;
  t.deepEqual(hosted.machines.list(), [source.id]);
  t.deepEqual([...hosted.mounts.held.keys()], [source.id]);
});

test('what is left of a creation that failed keeps its user until it is removed', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis, { slotsMax: 2 });
  const { hosted, time } = host;
  const { creator, accountId, machines } = hosted;
  const source = await host.create();
  const { gate } = hosted;
  let failures = 0;
  hosted.gate = async (point, id) => {
    if (point === 'before copy memory') throw new Error('the storage is full');
    if (point === 'before remove sandbox' && failures < 2) {
      failures += 1;
      throw new Error('the storage does not answer');
    }
    await gate(point, id);
  };
  const child = fork('child');
  const ref = { accountId, sandboxId: source.id };
  await t.throwsAsync(creator.fork(ref, child), { code: 'unavailable' });
  await t.throwsAsync(creator.create({ ...hosted.newSandbox(), sandboxId: child.sandboxId }), {
    code: 'outcome_unknown',
  });
  await time.pass(10_000);
  await time.until('nothing to be left', () => machines.list().length === 1);
  t.is(failures, 2);
  hosted.gate = gate;
  const next = await host.create();
  t.is(next.row.uid, source.row.uid + 1, 'nobody has the user of what failed');
  t.deepEqual(machines.faults, []);
});
