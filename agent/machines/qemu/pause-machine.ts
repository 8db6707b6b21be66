import { toError } from '../../../shared/errors.ts';
import type { MachineCgroup } from '../shim/machine-cgroup.ts';
import { MachineFault } from '../guest-link/guest-errors.ts';
import { failpoint } from '../../system/failpoint.ts';
import { trimDisk } from './disk/trim-disk.ts';
import { writtenLayers } from './disk/disk-chain.ts';
import { saveCheckpoint } from './memory/checkpoint.ts';
import { MachineStateError } from './memory/machine-state.ts';
import { type MicrovmHost, pathsOf } from './microvm-host.ts';
import type { MicrovmMachine } from './microvm-machine.ts';
import { vmCgroup } from './process/launch.ts';

/**
 * Freezes the guest, makes checkpoint and disk durable, and ends the machine. If the pause fails,
 * the machine continues to run; if it cannot, it is killed.
 */
export async function pauseMachine(
  host: MicrovmHost,
  vmId: string,
  running: MicrovmMachine,
): Promise<void> {
  const { checkpoint, disks } = pathsOf(host, vmId);
  const { machine, channel, template } = await running.live();
  await trimDisk(host, channel, vmId);
  const written = await writtenLayers(disks);
  await running.checkpointRemoved;
  try {
    await saveCheckpoint(machine, { directory: checkpoint, template, disks: written });
  } catch (error) {
    if (error instanceof MachineStateError) {
      await running.killProcess(`it could neither be paused nor continue: ${error.message}`);
    } else if (error instanceof MachineFault) {
      running.thawWhenAnswering();
    }
    throw error;
  }
  running.detach();
  const cgroup = vmCgroup(host, vmId);
  await keepDatabases(host, vmId, cgroup);
  await failpoint('end paused machine', () => cgroup.kill());
}

/** The pause has succeeded; without its databases the guest finds them as they are by then. */
async function keepDatabases(
  { databases, log }: MicrovmHost,
  vmId: string,
  cgroup: MachineCgroup,
): Promise<void> {
  try {
    await databases.lock(vmId, await cgroup.serverProcesses());
  } catch (error) {
    log.error({ vmId, err: toError(error) }, 'mounts:keepDatabasesFailed');
  }
}
