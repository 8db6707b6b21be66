/* Time limits of sandboxes on machines in memory, by clocks that the test moves. */
import { setImmediate } from 'node:timers/promises';
import anyTest from 'ava';
import { interceptFailpoints } from '../../../../agent/system/failpoint.ts';
import { SANDBOX_LIMITS } from '../../../../agent/sandboxes/limits.ts';
import type { NetworkPolicy } from '../../../../shared/schemas/network-policy.ts';
import { startRedis } from '../../../helpers/redis.ts';
import { TimedSandboxes } from '../../../helpers/timed-sandboxes.ts';

const { serial: test } = anyTest;
const redis = await startRedis();
test.afterEach.always(() => interceptFailpoints(undefined));
test.after.always(() => redis[Symbol.asyncDispose]());

const HOUR_MS = 3_600_000;

for (const [name, stepMs] of [
  ['is left alone', 0],
  ['is set forward', HOUR_MS],
  ['is set back', -HOUR_MS],
] as const) {
  test(`a session lasts for its time, and ends then, when the wall clock ${name}`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis);
    const { time } = host;
    const actor = await host.create({ maxTtlSeconds: 60 });
    await time.pass(30_000);
    time.setWallClock(Date.now() + stepMs);
    await actor.setLimits({ timeoutSeconds: undefined, idleTtlSeconds: 0 }); // Timers are set anew.
    await time.pass(29_999);
    t.is(actor.row.state, 'running');
    await time.pass(1);
    await host.until(actor, 'paused');
    t.deepEqual(host.hosted.machines.running, []);
  });

  test(`what is idle is paused after its time when the wall clock ${name}`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis);
    const { time } = host;
    const actor = await host.create({ idleTtlSeconds: 10 });
    const [release, releaseLast] = [actor.uses.portTraffic(), actor.uses.portTraffic()];
    release();
    release(); // Once is enough, and more does no harm.
    await time.pass(60_000);
    t.is(actor.row.state, 'running', 'it is in use');
    releaseLast();
    await time.pass(5_000);
    time.setWallClock(Date.now() + stepMs);
    await actor.setLimits({ timeoutSeconds: 1000, idleTtlSeconds: undefined }); // A use, too.
    await time.pass(9_999);
    t.is(actor.row.state, 'running');
    await time.pass(1);
    await host.until(actor, 'paused');
  });

  test(`limits count on in the next agent when the wall clock ${name}`, async (t) => {
    await using host = await TimedSandboxes.open(redis.redis);
    const { time, hosted } = host;
    const { id } = await host.create({ maxTtlSeconds: 60 });
    await time.pass(30_000);
    await hosted.killAgent(time);
    time.setWallClock(Date.now() + stepMs);
    await hosted.startAgent();
    const actor = host.find(id);
    t.is(actor.row.state, 'running');
    await time.pass(29_999);
    t.is(actor.row.state, 'running');
    await time.pass(1);
    await host.until(actor, 'paused');
  });
}

test('a use just before the agent ends counts in the next one', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { time, hosted } = host;
  const actor = await host.create({ idleTtlSeconds: 10 });
  await time.pass(5_000);
  const release = actor.uses.portTraffic();
  release();
  await hosted.stopAgent(); // Before the use is journalled.
  await hosted.startAgent();
  const next = host.find(actor.id);
  await time.pass(9_999);
  t.is(next.row.state, 'running');
  await time.pass(1);
  await host.until(next, 'paused');
});

test('a change that comes while the last use is journalled is not undone by it', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { hosted } = host;
  const actor = await host.create({ idleTtlSeconds: 10 });
  actor.uses.portTraffic()();
  const reached = Promise.withResolvers<void>();
  const mayGoOn = Promise.withResolvers<void>();
  interceptFailpoints(async (point) => {
    if (point !== 'before journal last use') return;
    reached.resolve();
    await mayGoOn.promise;
  });
  const stopped = hosted.stopAgent();
  await reached.promise;
  const changed = actor.setLimits({ timeoutSeconds: 1_000, idleTtlSeconds: undefined });
  await setImmediate();
  mayGoOn.resolve();
  await changed;
  await stopped;
  await hosted.startAgent();
  t.is(host.find(actor.id).row.config.maxTtlSeconds, 1_000);
});

test('a record shows the end of a session by the wall clock as it is set now', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { time } = host;
  const actor = await host.create({ maxTtlSeconds: 60 });
  const leftMs = (): number => Date.parse(actor.record.expiresAt ?? '') - Date.now();
  t.is(leftMs(), 60_000);
  await time.pass(10_000);
  t.is(leftMs(), 50_000);
  time.setWallClock(Date.now() + HOUR_MS);
  t.is(leftMs(), 50_000);
});

test('a session cannot be made longer than a day, whatever the wall clock shows', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { time } = host;
  const actor = await host.create({ maxTtlSeconds: 86_400 });
  await time.pass(HOUR_MS, 60_000);
  time.setWallClock(Date.now() - 5 * HOUR_MS);
  const more = (hours: number): Promise<void> =>
    actor.setLimits({ timeoutSeconds: hours * 3600, idleTtlSeconds: undefined });
  await t.throwsAsync(more(24), { code: 'bad_request' });
  await more(23);
});

test('what an agent was killed over while it paused it is idle again', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { time, hosted } = host;
  const { id } = await host.create({ idleTtlSeconds: 10 });
  const held = host.find(id).uses.portTraffic();
  await host.find(id).setLimits({ timeoutSeconds: undefined, idleTtlSeconds: 10 }); // Journalled.
  const { gate } = hosted;
  hosted.gate = async (point) => {
    if (point === 'before save memory') await new Promise(() => undefined);
    await gate(point, id);
  };
  await host.find(id).pause();
  await time.settle();
  await hosted.killAgent(time);
  held();
  hosted.gate = gate;
  await hosted.startAgent();
  const actor = host.find(id);
  await host.until(actor, 'running');
  await time.pass(9_000);
  t.is(actor.row.state, 'running');
  await time.pass(31_000); // The pause failed, so it is tried again only after a while.
  await host.until(actor, 'paused');
});

test('a limit that was reached without an agent counts as soon as there is one', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { time, hosted } = host;
  const { id } = await host.create({ maxTtlSeconds: 60 });
  await hosted.killAgent(time);
  await time.pass(61_000);
  await hosted.startAgent();
  await time.pass(1);
  await host.until(host.find(id), 'paused');
  t.pass();
});

test('a pause that is asked for counts although a limit has been waiting and is withdrawn', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { time, hosted } = host;
  const network: NetworkPolicy = { egress: { default: 'allow', drain_on_pause: ['*.example'] } };
  const sandbox = { ...hosted.newSandbox({ idleTtlSeconds: 60 }), network };
  const actor = await hosted.creator.create(sandbox);
  await host.until(actor, 'running');
  const over = Promise.withResolvers<void>();
  let drains = 0;
  hosted.policies.draining = () => {
    drains += 1;
    return over.promise;
  };
  await time.pass(60_000);
  await time.until('a limit that waits for a request', () => drains === 1);
  actor.uses.portTraffic(); // In use again.
  await actor.pause();
  t.is(drains, 1, 'both wait for the same');
  over.resolve();
  await host.until(actor, 'paused');
});

test('a limit whose pause waits for requests pauses no sandbox that is used again by then', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { time, hosted } = host;
  const network: NetworkPolicy = { egress: { default: 'allow', drain_on_pause: ['*.example'] } };
  const sandbox = { ...hosted.newSandbox({ idleTtlSeconds: 60 }), network };
  const actor = await hosted.creator.create(sandbox);
  await host.until(actor, 'running');
  const over = Promise.withResolvers<void>();
  hosted.policies.draining = () => over.promise;
  await time.pass(60_000);
  await host.until(actor, 'draining');
  const release = actor.uses.portTraffic();
  over.resolve();
  await host.until(actor, 'running');
  t.is(actor.row.checkpoint, undefined);
  release();
  await time.pass(60_000);
  await host.until(actor, 'paused');
});

test('a sandbox whose time was up when its pause was cancelled has the time of a resumed one', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { time, hosted } = host;
  const network: NetworkPolicy = { egress: { default: 'allow', drain_on_pause: ['*.example'] } };
  const sandbox = { ...hosted.newSandbox({ maxTtlSeconds: 60 }), network };
  const actor = await hosted.creator.create(sandbox);
  await host.until(actor, 'running');
  hosted.policies.draining = () => new Promise(() => undefined);
  await time.pass(60_000);
  await host.until(actor, 'draining');
  await actor.resume();
  await time.pass(59_000);
  t.is(actor.row.state, 'running');
  await time.pass(1_000);
  await host.until(actor, 'draining');
});

test('a limit counts again when the pause fails that has waited for requests', async (t) => {
  await using host = await TimedSandboxes.open(redis.redis);
  const { time, hosted } = host;
  const network: NetworkPolicy = { egress: { default: 'allow', drain_on_pause: ['*.example'] } };
  const sandbox = { ...hosted.newSandbox({ maxTtlSeconds: 60 }), network };
  const actor = await hosted.creator.create(sandbox);
  await host.until(actor, 'running');
  const over = Promise.withResolvers<void>();
  hosted.policies.draining = () => over.promise;
  await time.pass(61_000);
  t.is(actor.row.state, 'draining', 'a request is in progress');
  let failures = 0;
  interceptFailpoints(async (point) => {
    if (point !== 'before journal pausing' || failures > 0) return;
    failures += 1;
    throw new Error('the disk is full');
  });
  over.resolve();
  await time.until('the failure', () => failures === 1);
  await time.pass(SANDBOX_LIMITS.sandboxPauseRetryMs);
  await host.until(actor, 'paused');
});
