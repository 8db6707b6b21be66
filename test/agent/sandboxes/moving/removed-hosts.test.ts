/*
 * Leftovers of removed hosts on the storage of sandboxes: other hosts remove those that are no
 * sandboxes.
 */
import { closeSync, existsSync } from 'node:fs';
import { mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import { native } from '../../../../agent/native/native.ts';
import { HostWatch } from '../../../../agent/sandboxes/moving/host-watch.ts';
import { readSandbox, writeSandbox } from '../../../../agent/sandboxes/moving/handover-record.ts';
import { SharedStorage } from '../../../../agent/sandboxes/moving/shared-storage.ts';
import { RemovedHosts } from '../../../../agent/sandboxes/moving/removed-hosts.ts';
import { interceptFailpoints } from '../../../../agent/system/failpoint.ts';
import { openDirectory } from '../../../../shared/directory/directory.ts';
import { newHostId, newSandboxId } from '../../../../shared/ids.ts';
import { startRedis } from '../../../helpers/redis.ts';
import { newSandbox, sandboxRecord } from '../../../helpers/sandbox-records.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';
import { waitFor } from '../../../helpers/wait.ts';
import { LIMITS } from '../../../../shared/limits.ts';

const { serial } = test; // Failpoints are of the process.
const KEYS = [randomBytes(32)] as const;
const log = pino({ level: 'silent' });

Object.assign(LIMITS, { hostTtlMs: 20 }); // A host is silent at once.
test.afterEach.always(() => interceptFailpoints(undefined));

const read = (at: string, vmId: string) => readSandbox(at, KEYS, vmId);

/** Two hosts of one storage; the second one has machines, and is to be removed. */
async function newRegion() {
  const stack = new AsyncDisposableStack();
  const { path } = stack.use(await temporaryDirectory());
  const { redis } = stack.use(await startRedis());
  const directory = openDirectory(redis, 'local-test');
  const open = async () => {
    const hostId = newHostId();
    const storage = await SharedStorage.open(path, hostId);
    const { hosts } = directory;
    const watch = await HostWatch.open({ hostId, storage, hosts, hostLostMs: 0, log });
    stack.defer(() => watch.close());
    const handover = { storage, read };
    const removed = new RemovedHosts({ hostId, handover, watch, directory, log });
    return { hostId, storage, watch, removed };
  };
  const [own, other] = [await open(), await open()];
  const make = async (): Promise<string> => {
    const vmId = newSandboxId();
    await other.storage.claim(vmId);
    await mkdir(join(other.storage.directoryOf(vmId), 'disks'));
    return vmId;
  };
  return {
    ...{ path, directory, own, other, make },
    machines: async () => (await other.storage.list()).toSorted(),
    /** Looks until this host has found the other one silent for long enough. */
    look: (until: () => Promise<boolean>) =>
      waitFor('what is to be removed', async () => {
        await own.removed.clear();
        return until();
      }),
    [Symbol.asyncDispose]: () => stack.disposeAsync(),
  };
}

serial('only machines without a record go, of hosts that are removed and silent', async (t) => {
  await using region = await newRegion();
  const { own, other, directory, path } = region;
  const [bare, recorded, unread, used] = [
    await region.make(),
    await region.make(),
    await region.make(),
    await region.make(),
  ];
  const all = [bare, recorded, unread, used].toSorted();
  const row = newSandbox({ vmId: recorded });
  const { hostId } = other;
  await writeSandbox(other.storage.directoryOf(recorded), KEYS, { hostId, row });
  await writeFile(join(other.storage.directoryOf(unread), 'sandbox.sealed'), 'of another key');
  const lock = await native.takeLock(join(other.storage.directoryOf(used), 'lock'));
  const sign = async (): Promise<boolean> => {
    const silent = await own.watch.lockSilent(hostId);
    await silent?.[Symbol.asyncDispose]();
    return silent !== undefined;
  };

  await own.removed.clear();
  t.deepEqual(await region.machines(), all, 'the host is not removed');
  await directory.hosts.remove(hostId);
  for (let round = 0; round < 5; round += 1) {
    await other.watch.beat();
    await own.removed.clear();
  }
  t.deepEqual(await region.machines(), all, 'its agent has the lock');
  await other.watch.close();
  await waitFor('its silence', sign);

  await region.look(async () => (await region.machines()).length === 3);
  t.deepEqual(await region.machines(), [recorded, unread, used].toSorted());
  closeSync(lock);
  await own.removed.clear();
  t.deepEqual(await region.machines(), [recorded, unread].toSorted());
  t.true(existsSync(join(path, 'alive', hostId)));
  await writeFile(join(path, 'bases', `.${hostId}-half.ext4`), '');
  await writeFile(join(path, 'bases', `.${own.hostId}-half.ext4`), '');
  t.true(await own.storage.take(recorded, { hostId }));
  await rm(other.storage.directoryOf(unread), { recursive: true });
  await own.removed.clear();
  t.deepEqual(await readdir(join(path, 'hosts')), [own.hostId]);
  t.deepEqual(await readdir(join(path, 'alive')), [own.hostId]);
  t.deepEqual(await readdir(join(path, 'bases')), [`.${own.hostId}-half.ext4`]);
  t.deepEqual(await own.storage.list(), [recorded], 'what was taken stays');
});

serial('nothing goes while a record of the directory names the host', async (t) => {
  await using region = await newRegion();
  const { other, own, directory } = region;
  const vmId = await region.make();
  const { id: accountId } = await directory.accounts.create('account');
  const record = sandboxRecord({ accountId, hostId: other.hostId });
  await directory.sandboxes.publish(record);
  await directory.hosts.remove(other.hostId);
  await other.watch.close();
  await waitFor('its silence', async () => {
    const silent = await own.watch.lockSilent(other.hostId);
    await silent?.[Symbol.asyncDispose]();
    return silent !== undefined;
  });
  await own.removed.clear();
  t.deepEqual(await region.machines(), [vmId]);
  await directory.sandboxes.remove({ accountId, sandboxId: record.id, name: record.config.name });
  await region.look(async () => !existsSync(join(region.path, 'hosts', other.hostId)));
});

for (const step of ['discard machine', 'forget host', 'remove host directory'])
  for (const when of ['before', 'after'])
    serial(`a host that dies ${when} '${step}' leaves the rest to the next look`, async (t) => {
      await using region = await newRegion();
      const { other, own, directory } = region;
      for (let count = 0; count < 2; count += 1) await region.make();
      await directory.hosts.remove(other.hostId);
      await other.watch.close();
      let isReached = false;
      interceptFailpoints(async (point) => {
        if (point !== `${when} ${step}` || isReached) return;
        isReached = true;
        throw new Error('it dies');
      });
      await waitFor('the step', async () => {
        await own.removed.clear().catch(() => undefined);
        return isReached;
      });
      await region.look(async () => !existsSync(join(region.path, 'hosts', other.hostId)));
      t.deepEqual(await readdir(join(region.path, 'alive')), [own.hostId]);
    });
