/* How a host finds others lost, and what it holds of them. */
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import { HostWatch } from '../../../../agent/sandboxes/moving/host-watch.ts';
import { SharedStorage } from '../../../../agent/sandboxes/moving/shared-storage.ts';
import { takeLock } from '../../../../agent/system/file-lock.ts';
import { openDirectory } from '../../../../shared/directory/directory.ts';
import { newHostId, newSandboxId } from '../../../../shared/ids.ts';
import type { HostReport } from '../../../../shared/schemas/host.ts';
import { startRedis } from '../../../helpers/redis.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';
import { waitFor } from '../../../helpers/wait.ts';
import { LIMITS } from '../../../../shared/limits.ts';

Object.assign(LIMITS, { hostTtlMs: 20 }); // A host is silent at once.

const LONG_AGO: HostReport = {
  ...{ version: '1.0.0', order: 'up', vcpus: 8, vcpusFree: 8, memoryMib: 1, memoryMibFree: 1 },
  ...{ storageFreeBytes: 1, execSlots: 8, execsRunning: 0, execsWaiting: 0 },
  ...{ sandboxes: 1, sandboxesActive: 0, disks: 0, disksHeld: 0, seenAt: 1 },
};

/**
 * A host, and two others of its storage that it finds lost, in the order in which it looks at them.
 */
async function openLost() {
  await using opened = new AsyncDisposableStack();
  const { path } = opened.use(await temporaryDirectory());
  const { redis } = opened.use(await startRedis());
  const { hosts } = openDirectory(redis, 'local-test');
  const log = pino({ level: 'silent' });
  const open = async (hostId: string) => {
    const storage = await SharedStorage.open(path, hostId);
    const watch = await HostWatch.open({ hostId, storage, hosts, hostLostMs: 20, log });
    opened.defer(() => watch.close());
    await storage.claim(newSandboxId());
    await hosts.exchange(hostId, { report: LONG_AGO, internalUrl: undefined });
    return { hostId, storage, watch };
  };
  const [a = '', b = '', c = ''] = [newHostId(), newHostId(), newHostId()].toSorted();
  const [own, first, second] = [await open(a), await open(b), await open(c)];
  // The first one sees that the locks of living hosts keep it out.
  for (let looks = 0; looks < 3; looks += 1) {
    for (const { watch } of [first, second]) await watch.beat();
    await (await own.watch.lost())[Symbol.asyncDispose]();
  }
  for (const { watch } of [first, second]) await watch.close();
  const areLost = (): Promise<unknown> =>
    waitFor('the loss of both', async () => {
      await using lost = await own.watch.lost();
      return lost.hostIds.join(' ') === `${first.hostId} ${second.hostId}`;
    });
  await areLost();
  const kept = opened.move();
  return { own, first, second, areLost, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}

test('no lock of a lost host is held on to when another one cannot be judged', async (t) => {
  await using region = await openLost();
  const { own, first, second } = region;
  const { alive, hosts } = own.storage.paths;
  const directory = join(hosts, second.hostId);
  await rm(directory, { recursive: true });
  await writeFile(directory, 'no directory');
  await t.throwsAsync(own.watch.lost(), { code: 'ENOTDIR' });
  {
    // An agent of the host does the same when it starts.
    await using lock = await takeLock(join(alive, first.hostId));
    t.truthy(lock);
  }
  await rm(directory);
  await mkdir(join(directory, newSandboxId()), { recursive: true });
  await region.areLost();
});
