/* Which copies of images hosts remove from the storage that they share, and when. */
import { randomBytes } from 'node:crypto';
import { mkdir, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import { giveBase, readBase, sharedBases } from '../../../agent/machines/qemu/disk/disk-base.ts';
import { baseLinkOf, DiskBases } from '../../../agent/machines/qemu/disk/disk-bases.ts';
import { BaseEviction, type BaseEvictionDeps } from '../../../agent/sandboxes/base-eviction.ts';
import { HostWatch } from '../../../agent/sandboxes/moving/host-watch.ts';
import { SharedStorage } from '../../../agent/sandboxes/moving/shared-storage.ts';
import { openDirectory } from '../../../shared/directory/directory.ts';
import { newHostId, newSandboxId } from '../../../shared/ids.ts';
import { startRedis } from '../../helpers/redis.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { waitFor } from '../../helpers/wait.ts';

/** A watch that shows this much space on the shared storage, and none on the host's own. */
const watchOf = (path: string, freeBytes: number): BaseEvictionDeps['storage'] => ({
  spaceOf: (directory) => ({ freeBytes: directory === path ? freeBytes : 0, device: 1 }),
  reserveBytes: 1,
});
const DAY_MS = 86_400_000;

/** A storage, hosts on it, and machines whose disks stand on images of their own. */
async function newStorage() {
  const stack = new AsyncDisposableStack();
  const { path } = stack.use(await temporaryDirectory());
  const { redis } = stack.use(await startRedis());
  const { hosts } = openDirectory(redis, 'local-test');
  const log = pino({ level: 'silent' });
  const open = async (settings: Partial<BaseEvictionDeps> = {}) => {
    const hostId = newHostId();
    const shared = await SharedStorage.open(path, hostId);
    const watch = await HostWatch.open({ hostId, storage: shared, hosts, hostLostMs: 0, log });
    stack.defer(() => watch.close());
    const bases = new DiskBases(shared.paths.bases, hostId);
    const own = { bases: sharedBases(bases), shared, watch, log };
    const rest = { storage: watchOf(path, 10), keepMs: 0 };
    const eviction = new BaseEviction({ ...own, ...rest, ...settings });
    /** A machine of this host, with an image of its own. @returns the copy's name */
    const make = async (vmId: string): Promise<string> => {
      const image = join(path, `image-of-${vmId}`);
      await writeFile(image, vmId.padEnd(4096));
      await shared.claim(vmId);
      await giveBase(shared.directoryOf(vmId), image, { rootDisk: image, bases });
      return (await readBase(shared.directoryOf(vmId)))?.copy ?? '';
    };
    return { hostId, shared, watch, eviction, make };
  };
  /** Waits until whatever changes from now on is later than all changes before. */
  const later = async (): Promise<void> => {
    const now = Date.now();
    const probe = join(path, 'probe');
    await waitFor('the clock of the storage', async () => {
      await writeFile(probe, randomBytes(1));
      return (await stat(probe)).ctimeMs > now + 1;
    });
  };
  return {
    ...{ path, open, later },
    copies: () => readdir(join(path, 'bases')),
    [Symbol.asyncDispose]: () => stack.disposeAsync(),
  };
}

test('a copy goes when no machine has a link to it, after the time that it is kept', async (t) => {
  await using storage = await newStorage();
  const host = await storage.open();
  const patient = await storage.open({ keepMs: DAY_MS });
  const [needed, gone] = [newSandboxId(), newSandboxId()];
  const [copy] = [await host.make(needed), await host.make(gone)];
  await rm(host.shared.directoryOf(gone), { recursive: true });
  for (const { eviction } of [host, patient]) await eviction.keepOwn();
  for (const { watch } of [host, patient]) await watch.beat();
  await storage.later();
  await patient.eviction.evict();
  t.is((await storage.copies()).length, 2);
  await host.eviction.evict();
  t.deepEqual(await storage.copies(), [copy]);
});

test('while space is short the longest unused copy goes, one at a time', async (t) => {
  await using storage = await newStorage();
  const host = await storage.open({ keepMs: DAY_MS, storage: watchOf(storage.path, 1) });
  const ids = [newSandboxId(), newSandboxId(), newSandboxId()];
  const copies: string[] = [];
  for (const vmId of ids) copies.push(await host.make(vmId));
  for (const vmId of ids.slice(1).toReversed()) {
    await rm(host.shared.directoryOf(vmId), { recursive: true });
    await storage.later();
  }
  await host.eviction.keepOwn();
  await host.watch.beat();
  await host.eviction.evict();
  t.deepEqual((await storage.copies()).toSorted(), copies.slice(0, 2).toSorted());
  for (let round = 0; round < 2; round += 1) await host.eviction.evict();
  t.deepEqual(await storage.copies(), copies.slice(0, 1));
});

test('machines from before keep their copies, wherever they lie and whichever host has them', async (t) => {
  await using storage = await newStorage();
  const host = await storage.open();
  const former = await storage.open();
  const [own, released, others] = [newSandboxId(), newSandboxId(), newSandboxId()];
  const makers = [host, host, former];
  const ids = [own, released, others];
  const copies: string[] = [];
  for (const [index, vmId] of ids.entries()) {
    const { make, shared } = makers[index] ?? host;
    const copy = await make(vmId);
    copies.push(copy);
    await rm(baseLinkOf(shared.directoryOf(vmId), copy));
  }
  t.true(await host.shared.release(released));
  await host.eviction.keepOwn();
  await host.watch.beat();
  await host.eviction.evict();
  const all = copies.toSorted();
  t.deepEqual((await storage.copies()).toSorted(), all, 'the other host does not tell');
  await former.eviction.keepOwn(); // The host runs this version by now.
  await former.watch.beat();
  await host.eviction.evict();
  t.deepEqual((await storage.copies()).toSorted(), all, 'each has its link');
  await rm(former.shared.directoryOf(others), { recursive: true });
  await rm(host.shared.directoryOf(released, 'released'), { recursive: true });
  await storage.later();
  await host.eviction.evict();
  t.deepEqual(await storage.copies(), copies.slice(0, 1));
});

test('a host that runs a former version again stops the eviction', async (t) => {
  await using storage = await newStorage();
  const host = await storage.open();
  const other = await storage.open();
  const gone = newSandboxId();
  await host.make(gone);
  await rm(host.shared.directoryOf(gone), { recursive: true });
  for (const { eviction, watch } of [host, other]) {
    await eviction.keepOwn();
    await watch.beat();
  }
  await writeFile(join(host.shared.paths.alive, other.hostId), crypto.randomUUID());
  await host.eviction.evict();
  t.is((await storage.copies()).length, 1);
  await rm(join(host.shared.paths.alive, other.hostId));
  await host.eviction.evict();
  t.is((await storage.copies()).length, 1, 'nor does a host that shows nothing');
  await other.watch.close();
  await mkdir(join(host.shared.paths.hosts, 'no-host'));
  await rm(join(host.shared.paths.hosts, other.hostId), { recursive: true });
  await storage.later();
  await host.eviction.evict();
  t.deepEqual(await storage.copies(), []);
});
