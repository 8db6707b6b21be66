/* A sandbox's states, with its machine in memory and a clock that the test moves. */
import anyTest from 'ava';
import { copyMsMax } from '../../../../agent/sandboxes/lifecycle/copy-gate.ts';
import type { SandboxActor } from '../../../../agent/sandboxes/lifecycle/sandbox-actor.ts';
import { interceptFailpoints } from '../../../../agent/system/failpoint.ts';
import { AppError } from '../../../../shared/errors.ts';
import { newDiskId, newSandboxId } from '../../../../shared/ids.ts';
import { SANDBOX_LIMITS } from '../../../../agent/sandboxes/limits.ts';
import { SYSTEM_LIMITS } from '../../../../agent/system/limits.ts';
import { startRedis } from '../../../helpers/redis.ts';
import { TimedSandboxes } from '../../../helpers/timed-sandboxes.ts';

const { serial: test } = anyTest;
const redis = await startRedis();
test.after.always(() => redis[Symbol.asyncDispose]());

const nothing = (): undefined => undefined;

const spec = (command: string) => ({
  ...{ id: crypto.randomUUID(), command, environment: {} },
  ...{ hasTerminal: false, timeoutSeconds: undefined },
});

test('what a state does not allow is refused and changes nothing', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const actor = await host.create();
  await t.throwsAsync(actor.delete(nothing), { code: 'sandbox_not_stopped' });
  await actor.start(); // The sandbox runs already.
  t.is(actor.row.state, 'running');
  await actor.pause();
  await host.until(actor, 'paused');
  await t.throwsAsync(actor.exec(spec('pwd')), { code: 'sandbox_not_running' });
  await actor.pause(); // The sandbox is paused already.
  const { revision, checkpoint } = actor.row;
  await actor.resume();
  await host.until(actor, 'running');
  t.true(actor.row.revision > revision);
  t.not(checkpoint, undefined);
  await actor.stop();
  await host.until(actor, 'stopped');
  await t.throwsAsync(actor.resume(), { code: 'sandbox_terminated' });
  await actor.delete(nothing);
  await t.throwsAsync(actor.start(), { code: 'not_found' });
  await t.throwsAsync(actor.setLimits({ timeoutSeconds: 5, idleTtlSeconds: 5 }), {
    code: 'not_found',
  });
});

test('the end of a machine that is told in the next session does not end that', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const actor = await host.create();
  const told = Promise.withResolvers<void>();
  const { gate } = hosted;
  let ends = 0;
  hosted.gate = async (point, id) => {
    if (point === 'notice end' && (ends += 1) === 1) await told.promise;
    await gate(point, id);
  };
  await actor.stop();
  await time.pass(SANDBOX_LIMITS.sandboxStopGraceMs + 60_000); // Nobody tells its end, so it is overdue.
  await host.until(actor, 'stopped');
  await actor.start();
  await host.until(actor, 'running');
  const { runningSince } = actor.row;
  told.resolve();
  await time.pass(5_000);
  t.is(actor.row.state, 'running');
  t.is(actor.row.runningSince, runningSince);
  t.deepEqual(hosted.machines.faults, []);
});

for (const { what, hangs, state } of [
  { what: 'its whole time again while its storage hangs', hangs: true, state: 'paused' },
  { what: 'only its time while its storage answers', hangs: false, state: 'failed' },
] as const) {
  test(`a pause has ${what}`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis);
    const { hosted, time } = host;
    const actor = await host.create();
    const written = Promise.withResolvers<void>();
    const { gate } = hosted;
    hosted.gate = async (point, id) => {
      const ended = hosted.machines.vms.get(actor.id)?.ended;
      if (point === 'before save memory') await Promise.race([written.promise, ended]);
      await gate(point, id);
    };
    if (hangs) hosted.storageAnswers = written.promise;
    await actor.pause();
    await time.pass(copyMsMax(actor.row.config.memSizeMib) + 1_000);
    if (hangs) t.is(actor.row.state, 'pausing');
    else await host.until(actor, 'failed');
    written.resolve();
    await host.until(actor, state);
    t.is(actor.row.exitReason, hangs ? undefined : 'killed_by_host');
  });
}

test('a machine that ends by itself ends its sandbox and its commands', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const actor = await host.create();
  const running = spec('exec sleep infinity');
  await actor.exec(running);
  hosted.machines.vms.get(actor.id)?.stop('guest_panic');
  await host.until(actor, 'failed');
  t.is(actor.row.exitReason, 'guest_panic');
  t.is((await actor.readExec(running.id)).exec.status, 'failed');
  await time.until('its slot to be free', () => hosted.namespaces.present.size === 0);
  await actor.start();
  await host.until(actor, 'running');
});

test('what could not be cleaned up keeps its slot until it is, and nobody waits for that', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis, { slotsMax: 2 });
  const { hosted, time } = host;
  const { namespaces, machines } = hosted;
  const actor = await host.create();
  const { gate } = hosted;
  let failures = 0;
  hosted.gate = async (point, id) => {
    if (point === 'before reclaim machine' && failures < 3) {
      failures += 1;
      throw new Error('the control group is busy');
    }
    await gate(point, id);
  };
  await actor.stop();
  await host.until(actor, 'stopped');
  await time.settle();
  t.is(namespaces.present.size, 1, 'something of its machine may still use it');
  await time.pass(10_000);
  await time.until('its slot to be free', () => namespaces.present.size === 0);
  t.is(failures, 3);
  t.deepEqual([...machines.vms.keys()], []);
});

test('a sandbox that starts again before it was cleaned up has another slot', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis, { slotsMax: 2 });
  const { hosted, time } = host;
  const { namespaces, machines } = hosted;
  const actor = await host.create();
  const former = actor.row.slot;
  const { gate } = hosted;
  let failures = 0;
  hosted.gate = async (point, id) => {
    if (point === 'before reclaim machine' && (failures += 1) === 1) {
      throw new Error('the control group is busy');
    }
    await gate(point, id);
  };
  await actor.stop();
  await host.until(actor, 'stopped');
  await actor.start();
  await host.until(actor, 'running');
  t.not(actor.row.slot, former);
  await time.pass(10_000);
  await time.until('the former slot to be free', () => namespaces.present.size === 1);
  t.is(actor.row.state, 'running', 'its machine is not the one that was to go');
  t.is(machines.running.length, 1);
  t.deepEqual(machines.faults, []);
});

for (const [what, deadlineMs] of [
  ['start', 60_000 + SANDBOX_LIMITS.sandboxKillMsMax],
  ['pause that failed', copyMsMax(256)],
] as const)
  test(`a machine runs on whose ${what} was being journalled when its time was up`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis);
    const { hosted, time } = host;
    const actor = await host.create();
    const { gate } = hosted;
    if (what === 'start') {
      await actor.stop();
      await host.until(actor, 'stopped');
    }
    const full = Promise.withResolvers<void>();
    let isReached = false;
    interceptFailpoints(async (point) => {
      if (point !== 'before journal running') return;
      isReached = true;
      await full.promise;
    });
    t.teardown(() => interceptFailpoints(undefined));
    hosted.gate = async (at, id) => {
      if (at === 'before save memory') throw new Error('the storage is full');
      await gate(at, id);
    };
    await (what === 'start' ? actor.start() : actor.pause());
    await time.until('the journal', () => isReached);
    await time.pass(deadlineMs + 1_000);
    full.resolve();
    await host.until(actor, 'running');
    await time.settle();
    t.is(actor.row.state, 'running');
    t.is(hosted.machines.running.length, 1);
  });

test('a fork judges the mounts that its source has now', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted } = host;
  const mount = { diskId: newDiskId(), path: '/mnt/data', subdirectory: '', readOnly: false };
  const { id: sandboxId, accountId } = (await host.create({ mounts: [mount] })).row;
  const ref = { accountId, sandboxId };
  const copy = { sandboxId: newSandboxId(), name: 'copy', checkpoint: undefined };
  const refused = hosted.creator.fork(ref, { ...copy, mayMount: false });
  await t.throwsAsync(refused, { code: 'insufficient_scope' });
  t.false(hosted.registry.has(copy.sandboxId));
  const fork = await hosted.creator.fork(ref, { ...copy, mayMount: true });
  await host.until(fork, 'running');
});

test('a start that fails gives capacity back at once, and disks as soon as they can be', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const mount = { diskId: newDiskId(), path: '/mnt/data', subdirectory: '', readOnly: false };
  const actor = await host.create({ mounts: [mount] });
  await actor.stop();
  await host.until(actor, 'stopped');
  await time.until('its disk to be released', () => hosted.mounts.held.size === 0);
  interceptFailpoints(async (point) => {
    if (point === 'before journal pending_start') throw new Error('the disk is full');
  });
  t.teardown(() => interceptFailpoints(undefined));
  hosted.mounts.failures = 2; // The release itself, and its first repetition.
  await t.throwsAsync(actor.start(), { message: 'the disk is full' });
  t.is(hosted.mounts.failures, 0);
  t.is(hosted.load.memoryMibUsed, 0);
  t.is(hosted.mounts.held.size, 1);
  await time.pass(SYSTEM_LIMITS.removalRetryMsMax);
  await time.until('its disk to be released', () => hosted.mounts.held.size === 0);
  t.is(actor.row.state, 'stopped');
});

test('a sandbox ends whose disk another host got, also if its next agent finds out late', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const mount = { diskId: newDiskId(), path: '/mnt/data', subdirectory: '', readOnly: false };
  const { id } = await host.create({ mounts: [mount] });
  await hosted.stopAgent();
  let error = new AppError('unavailable', 'Redis does not answer');
  hosted.mounts.holding = () => Promise.reject(error);
  await hosted.startAgent();
  const actor = host.find(id);
  await time.pass(SYSTEM_LIMITS.removalRetryMsMin * 5);
  t.is(actor.row.state, 'running', 'nothing can happen to its disk');
  error = new AppError('disk_moved', 'another host has taken the disk');
  await time.pass(SYSTEM_LIMITS.removalRetryMsMin * 10);
  await host.until(actor, 'failed');
  t.is(actor.row.exitReason, 'killed_by_host');
  t.regex(actor.row.exitMessage ?? '', /given to another host/u);
  t.deepEqual(hosted.machines.running, []);
});

const away = new AppError('unavailable', 'Redis does not answer');
const moved = new AppError('disk_moved', 'another host has taken the disk');

/** A paused sandbox that mounts a disk. */
async function createPaused(host: TimedSandboxes): Promise<SandboxActor> {
  const mount = { diskId: newDiskId(), path: '/mnt/data', subdirectory: '', readOnly: false };
  const actor = await host.create({ mounts: [mount] });
  await actor.pause();
  await host.until(actor, 'paused');
  await host.time.settle();
  return actor;
}

for (const { when, lose } of [
  { when: 'while it is paused', lose: async ({ hosted }, { id }) => hosted.mounts.lose(id) },
  {
    when: 'while it is resumed',
    async lose({ hosted, time }, actor) {
      const launching = Promise.withResolvers<void>();
      const { gate } = hosted;
      hosted.gate = async (point, id) => {
        if (point === 'before launch machine') await launching.promise;
        await gate(point, id);
      };
      await actor.resume();
      await time.settle();
      hosted.mounts.lose(actor.id);
      launching.resolve();
    },
  },
  {
    when: 'and the journal fails at first',
    async lose({ hosted, time }, { id }) {
      interceptFailpoints(async (point) => {
        if (point === 'before journal stopped') throw new Error('the disk is full');
      });
      hosted.mounts.lose(id);
      await time.settle();
      interceptFailpoints(undefined);
    },
  },
  {
    when: 'as its next agent finds at once',
    async lose({ hosted }) {
      await hosted.stopAgent();
      hosted.mounts.holding = () => Promise.reject(moved);
      await hosted.startAgent();
    },
  },
  {
    when: 'as its next agent finds late',
    async lose({ hosted, time }) {
      await hosted.stopAgent();
      hosted.mounts.holding = () => Promise.reject(away);
      await hosted.startAgent();
      await time.pass(SYSTEM_LIMITS.removalRetryMsMin * 5);
      hosted.mounts.holding = () => Promise.reject(moved);
    },
  },
] satisfies {
  when: string;
  lose: (host: TimedSandboxes, actor: SandboxActor) => Promise<void>;
}[])
  test(`a sandbox paused in memory ends whose disk another host got ${when}`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis, {}, { pausedStaysInMemory: true });
    const actor = await createPaused(host);
    t.teardown(() => interceptFailpoints(undefined));
    const { hosted, time } = host;
    t.is(hosted.mounts.held.size, 1);
    await lose(host, actor);
    await time.pass(SYSTEM_LIMITS.removalRetryMsMin * 20);
    const { row } = host.find(actor.id);
    t.like(row, { state: 'stopped', exitReason: 'killed_by_host', slot: undefined });
    t.regex(row.exitMessage ?? '', /given to another host/u);
    t.is(hosted.mounts.held.size, 0);
    t.is(hosted.machines.checkpoints.size, 0);
    t.is(hosted.load.memoryMibUsed, 0);
  });

test('a sandbox whose resume its next agent finds under way ends when its disk is lost', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis, {}, { pausedStaysInMemory: true });
  const actor = await createPaused(host);
  const { hosted, time } = host;
  const { gate } = hosted;
  hosted.gate = async (point, id) =>
    point === 'before launch machine' ? new Promise(nothing) : gate(point, id);
  await actor.resume();
  await time.settle();
  await hosted.killAgent(time);
  hosted.gate = gate;
  hosted.mounts.holding = () => Promise.reject(moved);
  await hosted.startAgent();
  await time.settle();
  t.like(host.find(actor.id).row, { state: 'failed', exitReason: 'killed_by_host' });
  t.is(hosted.mounts.held.size, 0);
  t.is(hosted.machines.checkpoints.size, 0);
});

test('a sandbox whose memory is in files stays paused when its disk was lost', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  hosted.mounts.failures = 1; // The disk is kept for a moment.
  const actor = await createPaused(host);
  t.is(hosted.mounts.held.size, 1);
  hosted.mounts.lose(actor.id);
  await time.pass(SYSTEM_LIMITS.removalRetryMsMin * 5);
  t.is(actor.row.state, 'paused');
  t.is(hosted.mounts.held.size, 0);
});

test('a sandbox whose removal could not be journalled is as it was', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted, time } = host;
  const { registry, creator, accountId } = hosted;
  const actor = await host.create();
  const running = spec('exec sleep infinity');
  await actor.exec(running);
  interceptFailpoints(async (point) => {
    if (point === 'before journal delete') throw new Error('the journal cannot be written');
  });
  t.teardown(() => interceptFailpoints(undefined));
  const ref = { accountId, sandboxId: actor.id };
  await t.throwsAsync(creator.discard(ref), { message: /cannot be written/u });
  interceptFailpoints(undefined);
  t.is((await actor.readExec(running.id)).exec.status, 'running');
  await actor.pause();
  await host.until(actor, 'paused');
  await actor.resume();
  await host.until(actor, 'running');
  hosted.machines.vms.get(actor.id)?.stop('guest_panic');
  await host.until(actor, 'failed');
  await creator.discard(ref);
  await time.until('nothing to be left', () => hosted.machines.list().length === 0);
  t.is(registry.states.size, 0);
});
