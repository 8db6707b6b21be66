import { mkdir } from 'node:fs/promises';
import { AppError } from '../../../shared/errors.ts';
import { MACHINE_LIMITS } from '../limits.ts';
import { MachineFault } from '../guest-link/guest-errors.ts';
import { failpoint } from '../../system/failpoint.ts';
import { ProgramTimeoutError } from '../../system/spawn.ts';
import type { MachineOwner } from '../driver.ts';
import { isPaused, standStill } from './paused-container.ts';
import { pathsOf, type RuncHost } from './runc-host.ts';
import type { RuncMachine } from './runc-machine.ts';
import { copyAtRest, copyDisk, copyMounted, hasDisk } from './sandbox-disk.ts';

/**
 * How long a container may stand still until its disk is copied: well below the time after which
 * its sandbox would be ended (copy-gate.ts).
 */
const STILL_MS_MAX = 0.75 * MACHINE_LIMITS.sandboxCopyMsBase;

/**
 * Gives a sandbox that does not exist yet a copy of another one's disk; the memory stays behind. A
 * container that runs stands still while the file is copied, not while the copy is made durable.
 * @param continued called once a container that runs goes on
 */
export async function forkContainer(
  host: RuncHost,
  vmId: string,
  running: RuncMachine | undefined,
  child: MachineOwner,
  continued: () => void,
): Promise<void> {
  const { disk } = pathsOf(host, vmId);
  if (!hasDisk(disk)) return; // The source never ran: the copy begins like any new sandbox.
  const { directory, disk: copy } = pathsOf(host, child.vmId);
  await mkdir(directory, { recursive: true, mode: 0o711 });
  const isStill = running === undefined && (await isPaused(host, vmId));
  await copyDisk(disk, copy, async (from, to) => {
    if (running !== undefined) {
      await copyRunning(running, { from, to }, STILL_MS_MAX);
      continued();
      return;
    }
    await failpoint('copy disk', () =>
      isStill ? copyMounted(from, to, STILL_MS_MAX) : copyAtRest(from, to),
    );
  });
}

/**
 * Copies the disk of a container, which stands still meanwhile and runs on in any case.
 * @throws AppError `unavailable` when it would stand still for more than `msMax`
 */
export async function copyRunning(
  machine: RuncMachine,
  { from, to }: { readonly from: string; readonly to: string },
  msMax: number,
): Promise<void> {
  const until = performance.now() + msMax;
  try {
    await standStill(machine, msMax);
    try {
      await failpoint('copy disk', () => copyMounted(from, to, until - performance.now()));
    } finally {
      await machine.cgroup.thaw();
    }
  } catch (error) {
    if (!(error instanceof MachineFault || error instanceof ProgramTimeoutError)) throw error;
    const message = `it cannot be copied within ${msMax / 1000} s now; try again, or stop it first`;
    throw new AppError('unavailable', message, { cause: error });
  }
}
