import { mkdir, rm } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { isAlive } from '../../../shared/process-id.ts';
import { failpoint } from '../../system/failpoint.ts';
import {
  dropLayer,
  type Neighbours,
  ownNeighbours,
  readChain,
  removeStrays,
  unfreezeLayer,
} from './disk-chain.ts';
import { FILE_BYTES_MAX, type VmHost, vmCgroup } from '../qemu/launch.ts';
import { machinePaths } from '../qemu/machine-directory.ts';
import { QEMU_PATH } from '../qemu/qemu-arguments.ts';
import { readConsole, readExit, readIdentity, startShim } from '../qemu/shim.ts';
import { MiB } from '../../../shared/units.ts';

/** Chains that are shorter cost little. */
const LAYERS_LONG = 16;
/** A start waits for it; what is not merged by then is when the machine next comes up. */
const MERGE_MS_MAX = 20_000;
/** A layer that is larger stays as it is. */
const LAYER_BYTES_MAX = 256 * MiB;
const LIMITS = { memoryBytes: 512 * MiB, processes: 32, cpus: 1 } as const;
const LOOK_MS = 5;

interface DiskOwner {
  /** Names the control groups. */
  readonly name: string;
  /** Of the sandbox. */
  readonly directory: string;
  readonly uid: number;
}

/** A layer on all those below it, as `qemu-img` is told of them: what they say of it is not believed. */
function nodeOf(chain: readonly string[]): object {
  const base = { driver: 'raw', file: { driver: 'file', filename: QEMU_PATH.baseDisk } };
  return chain.reduce<object>((backing, layer) => {
    const file = { driver: 'file', filename: `${QEMU_PATH.disks}/${layer}` };
    return { driver: 'qcow2', file, backing };
  }, base);
}

/**
 * Makes one of every two neighbouring layers that no other sandbox shares, if the disk has many; no
 * machine may run on it. A crash leaves a disk with the same contents: what was copied to the lower
 * layer is still in the upper one, too, until that is out of the chain.
 * @returns how many layers fewer there are
 * @throws Error when a merge fails or takes too long, or the signal's reason; the disk is whole then
 *   as well
 */
export async function mergeLayers(
  host: VmHost,
  owner: DiskOwner,
  signal: AbortSignal,
): Promise<number> {
  const { disks } = machinePaths(owner.directory);
  if ((await readChain(disks)).length < LAYERS_LONG) return 0;
  await removeStrays(disks);
  const limit = AbortSignal.any([signal, AbortSignal.timeout(MERGE_MS_MAX)]);
  for (let merged = 0; ; merged += 1) {
    const next = await ownNeighbours(disks, LAYER_BYTES_MAX);
    if (next === undefined) return merged;
    await failpoint('merge layers', () => commitUpper(host, owner, next, limit));
    limit.throwIfAborted();
    await dropLayer(disks, next);
  }
}

/** Copies what the upper layer holds to the lower one, confined like the machine that wrote them. */
async function commitUpper(
  host: VmHost,
  { name, directory, uid }: DiskOwner,
  { chain, lower, upper }: Neighbours,
  signal: AbortSignal,
): Promise<void> {
  const { merge: run, disks } = machinePaths(directory);
  // The program opens both for writing, though it only writes to the lower one.
  for (const layer of [lower, upper]) await unfreezeLayer(disks, layer, uid);
  const cgroup = vmCgroup(host, name);
  const groups = await cgroup.create(LIMITS);
  try {
    await mkdir(run, { mode: 0o700 });
    await startShim({
      runDir: run,
      guestDir: host.guestDir,
      disk: { directory: disks, base: host.rootDisk },
      network: undefined,
      uid,
      fileBytesMax: FILE_BYTES_MAX,
      withKvm: false,
      preload: undefined,
      groups,
      passed: [],
      program: '/usr/bin/qemu-img',
      args: ['commit', '-q', '-d', `json:${JSON.stringify(nodeOf(chain))}`],
    });
    await untilEnded(run, signal);
  } finally {
    await cgroup.kill();
    await rm(run, { recursive: true, force: true });
    await cgroup.remove();
  }
}

/** @throws Error unless it succeeded */
async function untilEnded(run: string, signal: AbortSignal): Promise<void> {
  const identity = await readIdentity(run);
  if (identity === undefined) throw new Error('the program told nothing of itself');
  const { keeper } = identity;
  while (isAlive(keeper)) await sleep(LOOK_MS, undefined, { signal });
  const exit = await readExit(run);
  if (exit?.code === 0) return;
  const words = (await readConsole(run)).at(-1) ?? '';
  throw new Error(`layers were not merged: ${words === '' ? 'qemu-img was killed' : words}`);
}
