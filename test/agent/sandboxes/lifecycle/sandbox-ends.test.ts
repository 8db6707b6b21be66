/* How sandboxes end that the host gives up or deletes. Machines are in memory, all else is real. */
import test from 'ava';
import { HostedSandboxes } from '../../../helpers/hosted-sandboxes.ts';
import { waitFor } from '../../../helpers/wait.ts';

test('a deletion that fails after its intent is journalled is retried', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const { registry, creator, machines } = hosted;
  const ref = await hosted.create();
  const { accountId } = ref;
  const child = await creator.fork(ref, {
    sandboxId: crypto.randomUUID(),
    name: 'c',
    checkpoint: undefined,
  });
  await child.settled(10_000);
  for (const actor of [child, registry.find(ref)]) {
    await actor.stop();
    await actor.settled(10_000);
  }
  let failures = 0;
  hosted.gate = async (point) => {
    if (point !== 'before remove sandbox' || failures >= 2) return;
    failures += 1;
    throw new Error('the storage does not answer');
  };
  const childRef = { accountId, sandboxId: child.id };
  t.is(await registry.delete(childRef), undefined); // The caller is told that it is deleted.
  t.throws(() => registry.find(childRef), { code: 'not_found' });
  t.true(machines.disks.has(child.id));
  t.is(await registry.delete(ref), undefined); // A sandbox that is being deleted blocks no other.
  await waitFor('nothing to be left', async () => registry.states.size === 0);
  t.is(failures, 2);
  t.deepEqual(machines.list(), []);
});

test('a deletion that an agent did not finish is finished by the next one', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await hosted.create();
  const actor = hosted.registry.find(ref);
  await actor.stop();
  await actor.settled(10_000);
  hosted.gate = async (point) => {
    if (point === 'before remove sandbox') throw new Error('the storage does not answer');
  };
  await hosted.registry.delete(ref);
  await hosted.stopAgent();
  await hosted.startAgent(); // The agent starts although the deletion fails again.
  t.throws(() => hosted.registry.find(ref), { code: 'not_found' });
  hosted.gate = async () => undefined;
  await waitFor('nothing to be left', async () => hosted.registry.states.size === 0);
  t.deepEqual(hosted.machines.list(), []);
});

test('a sandbox that cannot be recovered ends as killed by its host', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const ref = await hosted.create();
  await hosted.stopAgent();
  hosted.gate = async (point) => {
    if (point === 'recover') throw new Error('its monitor is gone');
  };
  await hosted.startAgent();
  const { row } = hosted.registry.find(ref);
  t.like(row, { state: 'failed', exitReason: 'killed_by_host' });
  t.regex(row.exitMessage ?? '', /its monitor is gone/u);
  t.deepEqual(hosted.machines.running, []);
});

test('a sandbox that was stopped before it had a disk shows no checkpoint', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const { registry, creator, machines, accountId } = hosted;
  const ref = await hosted.create();
  const { config } = registry.find(ref).row;
  const held = Promise.withResolvers<void>();
  hosted.gate = async (point) => {
    if (point === 'before discard checkpoint') await held.promise;
  };
  const sandboxId = crypto.randomUUID();
  const early = await creator.create({
    ...{ sandboxId, accountId, environment: {} },
    config: { ...config, name: 'early' },
  });
  await early.stop();
  held.resolve();
  await early.settled(10_000);
  t.like(early.record, { state: 'stopped', checkpoint: undefined });
  t.is(machines.disks.has(sandboxId), false);
  const copy = await creator.fork(
    { accountId, sandboxId },
    {
      ...{ sandboxId: crypto.randomUUID(), name: 'copy', checkpoint: undefined },
    },
  );
  await copy.settled(10_000);
  t.is(copy.record.state, 'running');
  const stopped = registry.find(ref);
  await stopped.stop();
  await stopped.settled(10_000);
  t.is(typeof stopped.record.checkpoint, 'string');
});
