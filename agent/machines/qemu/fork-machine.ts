import { mkdir } from 'node:fs/promises';
import { MachineFault } from '../guest-link/guest-errors.ts';
import type { MachineOwner } from '../driver.ts';
import { copyBase, type DiskBase, findBase } from './disk/disk-base.ts';
import {
  addLayer,
  copyDisk,
  hasDisk,
  hasEmptyTop,
  ownerOfDisk,
  splitDisk,
} from './disk/disk-chain.ts';
import { switchLayer } from './disk/live-disk.ts';
import { trimDisk } from './disk/trim-disk.ts';
import {
  copyCheckpoint,
  saveRunningCheckpoint,
  hasCheckpoint,
  requireAnswers,
} from './memory/checkpoint.ts';
import { MachineStateError } from './memory/machine-state.ts';
import { failpoint } from '../../system/failpoint.ts';
import { syncPaths } from '../../system/write-durably.ts';
import { directoryOf } from '../shim/sandbox-directory.ts';
import { type MicrovmHost, pathsOf } from './microvm-host.ts';
import { machinePaths } from './process/machine-directory.ts';
import type { MicrovmMachine } from './microvm-machine.ts';

/**
 * Copies disk and memory of a running machine, which stands still for a moment. A machine that does
 * not continue afterwards is killed.
 */
export async function forkMachine(
  host: MicrovmHost,
  vmId: string,
  running: MicrovmMachine,
  child: MachineOwner,
  continued: () => void,
): Promise<void> {
  const { disks } = pathsOf(host, vmId);
  const directory = directoryOf(host, vmId);
  const base = await findBase(directory, host);
  const { machine, channel, template } = await running.live();
  await requireAnswers(machine, channel);
  await trimDisk(host, channel, vmId);
  const uid = await ownerOfDisk(disks);
  // The new layer is in the chain before anything writes to it, so the chain's record never lags
  // behind the disk. It is made before the machine stops, because that takes time.
  const made = (await hasEmptyTop(disks)) ? undefined : await addLayer(disks, base.path, uid);
  await mkdir(directoryOf(host, child.vmId), { mode: 0o700 });
  const place = { directory: pathsOf(host, child.vmId).checkpoint, template };
  try {
    const switchDisk = async (): Promise<readonly string[]> => {
      const split = made ?? (await splitDisk(disks, base.path, uid));
      if (split.isNew) await switchLayer(machine.monitor, split.fresh);
      return split.shared;
    };
    const shared = await saveRunningCheckpoint(machine, place, switchDisk, continued);
    const layers = await copyLayers(host, { directory, base, shared }, child);
    await failpoint('sync copy', () => syncPaths(layers));
  } catch (error) {
    if (error instanceof MachineStateError) {
      await running.killProcess(`it did not continue after a fork: ${error.message}`);
    } else if (error instanceof MachineFault) {
      running.thawWhenAnswering();
    }
    throw error;
  }
}

/** Copies disk and checkpoint of a machine at rest, as far as they exist. */
export async function forkAtRest(
  host: MicrovmHost,
  vmId: string,
  child: MachineOwner,
): Promise<void> {
  const { disks, checkpoint } = pathsOf(host, vmId);
  // The source never ran, so the copy boots like a new machine.
  if (!(await hasDisk(disks))) return;
  const directory = directoryOf(host, vmId);
  const base = await findBase(directory, host);
  const { shared } = await splitDisk(disks, base.path, await ownerOfDisk(disks));
  const made = await copyLayers(host, { directory, base, shared }, child);
  if (await hasCheckpoint(checkpoint)) {
    made.push(...(await copyCheckpoint(checkpoint, pathsOf(host, child.vmId).checkpoint)));
  }
  await failpoint('sync copy', () => syncPaths(made));
}

/**
 * A disk that is split: its machine's directory, the image below it, and the layers that the copy
 * shares.
 */
interface SplitDisk {
  readonly directory: string;
  readonly base: DiskBase;
  readonly shared: readonly string[];
}

/**
 * Makes the directory and disk of a copy. It does not count before its sandbox is journalled, so
 * that all of it can be made durable together.
 * @returns paths that the caller must make durable
 */
async function copyLayers(
  host: MicrovmHost,
  source: SplitDisk,
  { vmId, uid }: MachineOwner,
): Promise<string[]> {
  const directory = directoryOf(host, vmId);
  await mkdir(directory, { recursive: true, mode: 0o700 });
  const { base, record } = await copyBase(source, directory, host);
  const made = await copyDisk(machinePaths(source.directory).disks, source.shared, {
    directory: pathsOf(host, vmId).disks,
    ...{ base: base.path, uid },
  });
  return [record, ...made, directory, host.sandboxesDir];
}
