/* Sandboxes on images that their host has to get first. Machines and images are in memory. */
import { randomUUID } from 'node:crypto';
import test from 'ava';
import type { BuiltImage } from '../../../../agent/images/built-image.ts';
import type { SandboxActor } from '../../../../agent/sandboxes/lifecycle/sandbox-actor.ts';
import type { SandboxRef } from '../../../../agent/sandboxes/sandbox-registry.ts';
import { AppError } from '../../../../shared/errors.ts';
import type { NetworkPolicy } from '../../../../shared/schemas/network-policy.ts';
import { HostedSandboxes } from '../../../helpers/hosted-sandboxes.ts';
import { builtImage, DIGEST, InMemoryImages } from '../../../helpers/in-memory-images.ts';
import { waitFor } from '../../../helpers/wait.ts';

const reference = 'registry.example/team/app:1';

interface Opened {
  readonly hosted: HostedSandboxes;
  readonly ref: SandboxRef;
  readonly actor: () => SandboxActor;
}

/** A sandbox of an image that its host does not have. */
async function create(hosted: HostedSandboxes, digest?: string): Promise<Opened> {
  const image = { reference, ...(digest === undefined ? {} : { digest }) };
  const sandbox = { ...hosted.newSandbox({ baseImage: 'app:1' }), image };
  await hosted.creator.create(sandbox);
  const ref = { accountId: sandbox.accountId, sandboxId: sandbox.sandboxId };
  return { hosted, ref, actor: () => hosted.registry.find(ref) };
}

const runs = (actor: () => SandboxActor): Promise<unknown> =>
  waitFor('the sandbox to run', async () => actor().row.state === 'running');

test('a sandbox waits for its image without memory, slot or user, and then runs on it', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const { promise, resolve } = Promise.withResolvers<BuiltImage>();
  hosted.images.build = () => promise;
  const { actor } = await create(hosted);
  t.like(actor().row, { state: 'pending_image', slot: undefined, checkpoint: undefined });
  t.true(actor().row.uid < 0);
  t.is(hosted.load.memoryMibUsed, 0);
  t.is(actor().record.imageDigest, undefined);
  resolve(builtImage({ platform: 'arm64' }));
  await runs(actor);
  t.like(actor().record, { imageDigest: DIGEST, platform: 'arm64', state: 'running' });
  t.true(actor().row.uid > 0);
  const { vmId } = actor().row;
  t.is(hosted.machines.disks.get(vmId)?.image, builtImage().rootDisk);
  t.is(hosted.images.holds.get(DIGEST), 1);
});

test('an image that the host has is used at once, and the environment of a sandbox overrides its', async (t) => {
  await using hosted = await HostedSandboxes.open();
  hosted.images.present.set(DIGEST, builtImage());
  const { actor } = await create(hosted, DIGEST);
  t.not(actor().row.state, 'pending_image');
  await runs(actor);
  t.deepEqual(hosted.images.brought, []);
  t.like(actor().row.image, { reference, digest: DIGEST, config: builtImage().config });
});

test('the next agent brings the image that a sandbox waits for', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const { actor } = await create(hosted);
  await hosted.stopAgent();
  hosted.images.build = async () => builtImage();
  await hosted.startAgent();
  await runs(actor);
  t.is(hosted.images.brought.length, 2);
});

test('an image that cannot be built fails its sandbox, which can be started again', async (t) => {
  await using hosted = await HostedSandboxes.open();
  hosted.images.build = () => InMemoryImages.refuse();
  const { actor, ref } = await create(hosted);
  await waitFor('the failure', async () => actor().row.state === 'failed');
  t.like(actor().record, {
    exitReason: 'image_failed',
    exitMessage: 'the registry has no such image',
  });
  hosted.images.build = async () => builtImage();
  await actor().start();
  await runs(actor);
  t.is(actor().row.exitReason, undefined);
  await actor().stop();
  await waitFor('the stop', async () => actor().row.state === 'stopped');
  t.is(hosted.images.holds.get(DIGEST), 1, 'its disk stands on the image');
  await hosted.registry.delete(ref);
  await waitFor('the release', async () => hosted.images.holds.get(DIGEST) === 0);
});

test('a sandbox that waits for its image can be stopped, started, stopped and deleted', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const { actor, ref } = await create(hosted);
  await actor().stop();
  t.like(actor().row, { state: 'stopped', exitReason: 'stopped', checkpoint: undefined });
  await actor().start();
  t.is(actor().row.state, 'pending_image');
  await actor().stop();
  await hosted.registry.delete(ref);
  t.throws(actor, { message: /no such sandbox/u });
});

test('a sandbox that was stopped before its image came has forks that wait for it, too', async (t) => {
  await using hosted = await HostedSandboxes.open();
  const { actor, ref } = await create(hosted);
  await actor().stop();
  const sandboxId = hosted.newSandbox().sandboxId;
  const fork = await hosted.creator.fork(ref, { sandboxId, name: 'copy', checkpoint: undefined });
  t.is(fork.row.state, 'pending_image');
  hosted.images.build = async () => builtImage();
  await fork.stop();
  await fork.start();
  await runs(() => fork);
});

test('forks and the next agent hold the image of a sandbox', async (t) => {
  await using hosted = await HostedSandboxes.open();
  hosted.images.build = async () => builtImage();
  const { actor, ref } = await create(hosted);
  await runs(actor);
  const sandboxId = hosted.newSandbox().sandboxId;
  const fork = await hosted.creator.fork(ref, { sandboxId, name: 'copy', checkpoint: undefined });
  await runs(() => fork);
  t.is(hosted.images.holds.get(DIGEST), 2);
  t.is(hosted.machines.disks.get(fork.row.vmId)?.image, builtImage().rootDisk);
  await hosted.stopAgent();
  await hosted.startAgent();
  t.is(hosted.images.holds.get(DIGEST), 2);
});

test('a sandbox that is refused for its network policy holds no image', async (t) => {
  await using hosted = await HostedSandboxes.open(undefined, {}, { hasNetwork: false });
  hosted.images.present.set(DIGEST, builtImage());
  const network: NetworkPolicy = { egress: { default: 'deny' } };
  const image = { reference, digest: DIGEST };
  const refused = hosted.creator.create({ ...hosted.newSandbox(), image, network });
  await t.throwsAsync(refused, { code: 'not_enabled' });
  t.is(hosted.images.holds.get(DIGEST) ?? 0, 0);
  const source = await hosted.creator.create({ ...hosted.newSandbox(), image });
  await runs(() => source);
  const { accountId, id } = source;
  const wanted = { snapshotId: randomUUID(), name: 'kept' };
  const snapshot = await hosted.creator.snapshot({ accountId, sandboxId: id }, wanted);
  await snapshot.made;
  t.is(hosted.images.holds.get(DIGEST), 2);
  const { sandboxId } = hosted.newSandbox();
  const from = { sandboxId, accountId, snapshotId: snapshot.row.id, config: { name: 'child' } };
  const child = hosted.creator.createFromSnapshot({ ...from, environment: undefined, network });
  await t.throwsAsync(child, { code: 'not_enabled' });
  t.is(hosted.images.holds.get(DIGEST), 2);
});

test('a host without capacity when the image has come says so, and starts it later', async (t) => {
  await using hosted = await HostedSandboxes.open(undefined, { memoryMib: 700, vcpus: 2 });
  const { promise, resolve } = Promise.withResolvers<BuiltImage>();
  hosted.images.build = () => promise;
  const { actor } = await create(hosted);
  const other = await hosted.create();
  await hosted.create().catch(() => undefined);
  resolve(builtImage());
  await waitFor('the failure', async () => actor().row.state === 'failed');
  t.is(actor().row.exitReason, 'no_capacity');
  t.true(actor().row.uid < 0);
  await hosted.registry.find(other).stop();
  await waitFor('the stop', async () => hosted.registry.find(other).row.state === 'stopped');
  await actor().start();
  await runs(actor);
});

test('a sandbox waits while the host builds too many images already', async (t) => {
  await using hosted = await HostedSandboxes.open();
  hosted.images.build = async () => {
    if (hosted.images.brought.length < 3) throw new AppError('no_capacity', 'too many builds wait');
    return builtImage();
  };
  const { actor } = await create(hosted);
  t.is(actor().row.state, 'pending_image');
  await runs(actor);
  t.is(hosted.images.brought.length, 3);
});
