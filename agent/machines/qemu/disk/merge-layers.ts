import { mkdir, rm } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { isAlive } from '../../../../shared/process-id.ts';
import { failpoint } from '../../../system/failpoint.ts';
import { type BaseHost, findBase } from './disk-base.ts';
import {
  dropLayer,
  type Neighbours,
  findMergeable,
  readChain,
  removeStrays,
  unfreezeLayer,
} from './disk-chain.ts';
import { FILE_BYTES_MAX, type VmHost, vmCgroup } from '../process/launch.ts';
import { machinePaths } from '../process/machine-directory.ts';
import { QEMU_PATH } from '../process/qemu-arguments.ts';
import { readConsole, readExit, readIdentity } from '../../shim/shim-files.ts';
import { startQemu } from '../process/start-qemu.ts';
import { MiB } from '../../../../shared/units.ts';

/** Shorter chains cost too little to be merged. */
const LAYERS_LONG = 16;
/** Bounded because a start waits for it; the next start continues the merge. */
const MERGE_MS_MAX = 20_000;
/** Larger layers are not merged. */
const LAYER_BYTES_MAX = 256 * MiB;
const LIMITS = { memoryBytes: 512 * MiB, processes: 32, cpus: 1 } as const;
const POLL_MS = 5;

interface DiskOwner {
  /** Names the control groups. */
  readonly name: string;
  /** The sandbox's directory. */
  readonly directory: string;
  readonly uid: number;
}

/**
 * A layer with all layers below it, as `qemu-img` is given them. Formats and backing files are
 * named here, because what a layer's own header says is not trusted.
 */
function nodeOf(chain: readonly string[]): object {
  const base = { driver: 'raw', file: { driver: 'file', filename: QEMU_PATH.baseDisk } };
  return chain.reduce<object>((backing, layer) => {
    const file = { driver: 'file', filename: `${QEMU_PATH.disks}/${layer}` };
    return { driver: 'qcow2', file, backing };
  }, base);
}

/**
 * Merges neighbouring layers that no other sandbox shares, if the disk has many layers. The machine
 * must not be running. A crash does not change the disk's contents: whatever was copied to the
 * lower layer is also in the upper one until that is out of the chain.
 * @returns how many layers were merged away
 * @throws Error when a merge fails or takes too long; the signal's reason. The disk stays intact
 */
export async function mergeLayers(
  host: VmHost & BaseHost,
  owner: DiskOwner,
  signal: AbortSignal,
): Promise<number> {
  const { disks } = machinePaths(owner.directory);
  if ((await readChain(disks)).length < LAYERS_LONG) return 0;
  await removeStrays(disks);
  const limit = AbortSignal.any([signal, AbortSignal.timeout(MERGE_MS_MAX)]);
  for (let merged = 0; ; merged += 1) {
    const next = await findMergeable(disks, LAYER_BYTES_MAX);
    if (next === undefined) return merged;
    await failpoint('merge layers', () => commitUpper(host, owner, next, limit));
    limit.throwIfAborted();
    await dropLayer(disks, next);
  }
}

/**
 * Copies what the upper layer holds to the lower one, confined like the machine that wrote them.
 */
async function commitUpper(
  host: VmHost & BaseHost,
  { name, directory, uid }: DiskOwner,
  { chain, lower, upper }: Neighbours,
  signal: AbortSignal,
): Promise<void> {
  const { merge: run, disks } = machinePaths(directory);
  // qemu-img opens both layers for writing, though it writes only to the lower one.
  for (const layer of [lower, upper]) await unfreezeLayer(disks, layer, uid);
  const cgroup = vmCgroup(host, name);
  const groups = await cgroup.create(LIMITS);
  try {
    await mkdir(run, { mode: 0o700 });
    await startQemu({
      runDir: run,
      guestDir: host.guestDir,
      disk: { directory: disks, base: (await findBase(directory, host)).path },
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

/** Waits for the end of qemu-img. @throws Error unless it succeeded */
async function untilEnded(run: string, signal: AbortSignal): Promise<void> {
  const identity = await readIdentity(run);
  if (identity === undefined) throw new Error('the shim recorded no identity of qemu-img');
  const { keeper: shim } = identity;
  while (isAlive(shim)) await sleep(POLL_MS, undefined, { signal });
  const exit = await readExit(run);
  if (exit?.code === 0) return;
  const words = (await readConsole(run)).at(-1) ?? '';
  throw new Error(`merging layers failed: ${words === '' ? 'qemu-img was killed' : words}`);
}
