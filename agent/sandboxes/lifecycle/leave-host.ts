import { runInBackground } from '../../../shared/background.ts';
import { isAtRest } from '../../../shared/sandbox-lifecycle.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { SandboxContext } from './sandbox-context.ts';

/* How a sandbox leaves this host: released at rest, or found taken over by another. */

/**
 * Releases a sandbox at rest to other hosts. Its directory, and in it everything that this host's
 * journal has of it, belongs to whichever host takes it.
 * @returns false when it is not at rest, or in use
 */
export async function releaseSandbox({ sandbox, current, deps }: SandboxContext): Promise<boolean> {
  const { driver, handover, journal, mounts } = deps;
  const { row } = sandbox;
  const isResting = isAtRest(row.state) && row.slot === undefined && current.run === undefined;
  if (handover === undefined || row.uid < 0 || row.isDeleting || !isResting) return false;
  // Earlier attempts may have failed.
  await driver.reclaim(row.vmId);
  driver.releaseDisks(row.vmId);
  await mounts.retain(row.id, []);
  await handover.write(row);
  if (!(await handover.storage.release(row.vmId))) return false;
  sandbox.detachAsMoved();
  await failpoint('journal released', () => journal.remove(row.id));
  return true;
}

/**
 * Ends and forgets a sandbox that another host has taken. May be repeated when it fails.
 * @param detach lets go of the machine, which runs no more by then
 */
export async function forgetTakenOver(
  { sandbox, deps }: SandboxContext,
  detach: () => Promise<void>,
): Promise<void> {
  const { driver, journal, mounts, slots } = deps;
  const { id, vmId, slot } = sandbox.row;
  sandbox.detachAsMoved();
  // At once: it must not run beside the other one while anything here is waited for.
  await Promise.all([driver.reclaim(vmId), detach()]);
  await driver.reclaim(vmId); // A start was under way, perhaps.
  driver.releaseDisks(vmId);
  await mounts.retain(id, []);
  await failpoint('journal taken away', () => journal.remove(id));
  if (slot !== undefined) runInBackground('slot.release', () => slots.release(slot));
}
