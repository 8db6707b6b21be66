/* How a sandbox keeps its network policy; what a policy does is shown in test/agent/network. */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import type { SandboxActor } from '../../../../agent/sandboxes/lifecycle/sandbox-actor.ts';
import type { SandboxRef } from '../../../../agent/sandboxes/sandbox-registry.ts';
import type { NetworkPolicy } from '../../../../shared/schemas/network-policy.ts';
import { newSandboxId } from '../../../../shared/ids.ts';
import { HostedSandboxes } from '../../../helpers/hosted-sandboxes.ts';

const CLOSED: NetworkPolicy = { egress: { default: 'deny', allow: ['192.0.2.0/24'] } };
const BROKERED: NetworkPolicy = {
  egress: {
    default: 'deny',
    allow: [{ target: 'api.example', transform: { headers: { Authorization: 'hidden' } } }],
  },
};

async function create(hosted: HostedSandboxes, network?: NetworkPolicy): Promise<SandboxRef> {
  const sandbox = { ...hosted.newSandbox(), network };
  const actor = await hosted.creator.create(sandbox);
  await actor.settled(10_000);
  return { accountId: sandbox.accountId, sandboxId: sandbox.sandboxId };
}

async function until(actor: SandboxActor, action: () => Promise<void>): Promise<void> {
  await action();
  await actor.settled(10_000);
}

/** Decisions counted in the slot of a running sandbox. */
function counting(hosted: HostedSandboxes, ref: SandboxRef): NetworkPolicy | undefined {
  const { slot, state } = hosted.registry.find(ref).row;
  return state === 'running' ? hosted.policies.applied.get(slot ?? -1) : undefined;
}

test('a policy counts whenever the machine runs: after stop, pause, fork and another agent', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted, BROKERED);
  const actor = hosted.registry.find(ref);
  const again = (): void => {
    t.deepEqual(counting(hosted, ref), BROKERED);
    hosted.policies.applied.clear();
  };
  again();
  await until(actor, () => actor.stop());
  await until(actor, () => actor.start());
  again();
  await until(actor, () => actor.pause());
  await until(actor, () => actor.resume());
  again();
  await hosted.stopAgent();
  await hosted.startAgent();
  again();
  const child = { sandboxId: randomUUID(), name: 'copy', checkpoint: undefined };
  const copy = await hosted.creator.fork(ref, child);
  await copy.settled(10_000);
  t.deepEqual(counting(hosted, { ...ref, sandboxId: child.sandboxId }), BROKERED);
  t.deepEqual(copy.record.network, hosted.registry.find(ref).record.network);
});

test('a sandbox without a policy may connect to everything', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted);
  t.deepEqual(hosted.registry.find(ref).record.network, { egress: { default: 'allow' } });
  t.deepEqual(counting(hosted, ref), { egress: { default: 'allow' } });
});

test('no machine runs before its policy counts', async (t) => {
  await using hosted = await HostedSandboxes.open();
  hosted.policies.applying = () => Promise.reject(new Error('nft is gone'));
  const ref = await create(hosted, CLOSED);
  t.is(hosted.registry.find(ref).row.state, 'failed');
  t.deepEqual(hosted.machines.running, []);
});

test('a policy is replaced while the sandbox runs, and only then', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted, BROKERED);
  const actor = hosted.registry.find(ref);
  await actor.setNetwork(CLOSED);
  t.deepEqual(counting(hosted, ref), CLOSED);
  t.deepEqual(actor.record.network, CLOSED);
  await until(actor, () => actor.pause());
  await t.throwsAsync(actor.setNetwork({}), { code: 'sandbox_not_running' });
  t.deepEqual(actor.record.network, CLOSED);
  await until(actor, () => actor.resume());
  t.deepEqual(counting(hosted, ref), CLOSED);
});

test('of two policies that are set at the same time one is refused', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted);
  const actor = hosted.registry.find(ref);
  const both = await Promise.allSettled([actor.setNetwork(CLOSED), actor.setNetwork(BROKERED)]);
  const refusal: unknown = both[1].status === 'rejected' ? both[1].reason : undefined;
  t.like(refusal, { code: 'sandbox_network_conflict' });
  t.deepEqual(counting(hosted, ref), CLOSED);
});

test('a policy that cannot be applied leaves the former one', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted, CLOSED);
  const actor = hosted.registry.find(ref);
  hosted.policies.applying = async (policy) => {
    hosted.policies.applied.clear();
    if (policy.egress === undefined) throw new Error('nft is gone');
  };
  await t.throwsAsync(actor.setNetwork({}), { code: 'unavailable' });
  t.deepEqual(counting(hosted, ref), CLOSED);
  t.deepEqual(actor.record.network, CLOSED);
});

test('a sandbox whose slot has neither its new policy nor its former one does not run on', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted, CLOSED);
  const actor = hosted.registry.find(ref);
  hosted.policies.applying = () => Promise.reject(new Error('nft is gone'));
  await t.throwsAsync(actor.setNetwork({}), { code: 'unavailable' });
  while (actor.row.state === 'running') await new Promise((resolve) => setImmediate(resolve));
  t.like(actor.row, { state: 'failed', exitReason: 'killed_by_host' });
});

test('secrets of a policy are neither published nor in the journal', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted, BROKERED);
  const { record, row } = hosted.registry.find(ref);
  t.deepEqual(record.network?.egress?.allow, [
    { target: 'api.example', transform: { headers: { Authorization: null } } },
  ]);
  t.false(JSON.stringify({ record, row }).includes('hidden'));
  t.is(typeof row.networkSealed, 'string');
});

const DRAINED: NetworkPolicy = { egress: { default: 'allow', drain_on_pause: ['*.example'] } };

test('a pause waits for the requests that the policy names, and shows `pausing` all the while', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted, DRAINED);
  const actor = hosted.registry.find(ref);
  const over = Promise.withResolvers<void>();
  hosted.policies.draining = () => over.promise;
  await Promise.all([actor.pause(), actor.pause()]);
  const { state, checkpoint } = await actor.publishedRecord();
  t.is(state, 'pausing');
  t.truthy(checkpoint);
  t.deepEqual([...hosted.registry.states.values()], ['pausing']);
  t.is(actor.row.state, 'draining');
  for (const refused of [() => actor.connect(), () => actor.setNetwork({})])
    await t.throwsAsync(refused, { code: 'sandbox_not_running' });
  over.resolve();
  await actor.settled(10_000);
  t.like(actor.row, { state: 'paused', checkpoint });
});

for (const action of ['resume', 'start'] as const) {
  test(`a ${action} cancels a pause that waits for requests: the same machine runs on`, async (t) => {
    await using hosted = await HostedSandboxes.open();
    const ref = await create(hosted, DRAINED);
    const actor = hosted.registry.find(ref);
    const drains: AbortSignal[] = [];
    const over = Promise.withResolvers<void>();
    hosted.policies.draining = (signal) => {
      drains.push(signal);
      return over.promise;
    };
    const { bootId, runningAt, slot } = actor.row;
    await actor.pause();
    const waiting = actor.settled(10_000);
    await actor[action]();
    await waiting;
    t.like(actor.row, { state: 'running', checkpoint: undefined, bootId, runningAt, slot });
    t.is(actor.record.exitMessage, `its pause was cancelled: ${action} was asked for`);
    t.true(drains[0]?.aborted);
    over.resolve();
    await sleep(100);
    t.is(actor.row.state, 'running', 'the requests are over');
    await until(actor, () => actor.pause());
    t.is(actor.row.state, 'paused');
  });
}

test('the shutdown of a host pauses without waiting for requests', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted, DRAINED);
  const actor = hosted.registry.find(ref);
  hosted.policies.draining = () => new Promise(() => undefined);
  await actor.pause();
  await hosted.registry.stopAll();
  t.is(actor.row.state, 'paused');
});

test('a sandbox that is stopped during that wait is not paused when it runs again', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted, DRAINED);
  const actor = hosted.registry.find(ref);
  const drains: AbortSignal[] = [];
  hosted.policies.draining = (signal) =>
    new Promise((_resolve, reject) => {
      drains.push(signal);
      signal.addEventListener('abort', () => reject(new Error('aborted')));
    });
  await actor.pause();
  await until(actor, () => actor.stop());
  t.true(drains[0]?.aborted);
  await until(actor, () => actor.start());
  t.is(actor.row.state, 'running');
});

test('a sandbox whose requests cannot be watched is paused all the same', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted, DRAINED);
  const actor = hosted.registry.find(ref);
  hosted.policies.draining = () => Promise.reject(new Error('the proxy is gone'));
  await until(actor, () => actor.pause());
  t.is(actor.row.state, 'paused');
});

const NAMED: NetworkPolicy = { egress: { default: 'deny', allow: ['a.example'] } };

test('addresses of names follow the memory: over a pause, to forks and to snapshots', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await create(hosted, NAMED);
  const actor = hosted.registry.find(ref);
  const learnt = { allow_1: { '203.0.113.1': 4_000_000_000 } };
  const { addresses } = hosted.policies;
  addresses.set(Number(actor.row.slot), learnt);
  const known = ({ row }: SandboxActor): unknown => addresses.get(Number(row.slot));

  const copy = { sandboxId: newSandboxId(), name: 'copy', checkpoint: undefined };
  const fork = await hosted.creator.fork(ref, copy);
  await fork.settled(10_000);
  t.deepEqual(known(fork), learnt);
  const snapshotId = randomUUID();
  const snapshot = await hosted.creator.snapshot(ref, { snapshotId, name: 'kept' });
  await snapshot.settled(10_000);

  await until(actor, () => actor.pause());
  addresses.clear();
  t.deepEqual(actor.row.nameAddresses, learnt);
  await until(actor, () => actor.resume());
  t.deepEqual(known(actor), learnt);
  t.is(actor.row.nameAddresses, undefined, 'the slot has them');

  const { accountId } = ref;
  const given = { environment: undefined, network: undefined, config: { name: 'third' } };
  const third = { sandboxId: newSandboxId(), accountId, snapshotId, ...given };
  const created = await hosted.creator.createFromSnapshot(third);
  await created.settled(10_000);
  t.deepEqual(known(created), learnt);

  await until(actor, () => actor.pause());
  addresses.clear();
  await until(actor, () => actor.start());
  t.is(known(actor), undefined, 'a guest that boots asks again');
});
