import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';
import type { SandboxJournal } from '../system/journal/sandbox-journal.ts';
import { repeatUntilDone } from '../system/queues/until-done.ts';
import { failpoint } from '../system/failpoint.ts';
import type { MachineDriver } from '../machines/driver.ts';
import type { HandoverStore } from './moving/handover-store.ts';
import type { SandboxTakeover } from './moving/sandbox-takeover.ts';
import type { SandboxEvacuation } from './moving/sandbox-evacuation.ts';
import type { SandboxMounts } from '../machines/attachments.ts';
import type { SandboxRegistry } from './sandbox-registry.ts';
import type { Snapshots } from './snapshots/snapshots.ts';
import type { UidPool } from './holds/uid-pool.ts';

export interface RecoveryDeps {
  readonly registry: SandboxRegistry;
  /** Undefined where sandboxes stay on their host, as are `evacuation` and `handover`. */
  readonly takeover: SandboxTakeover | undefined;
  readonly evacuation?: SandboxEvacuation | undefined;
  readonly handover?: HandoverStore | undefined;
  readonly journal: SandboxJournal;
  readonly driver: MachineDriver;
  readonly mounts: SandboxMounts;
  readonly snapshots: Snapshots;
  readonly uids: UidPool;
  /** Ends attempts that are repeated in the background. */
  readonly signal: AbortSignal;
  readonly log: Logger;
}

/**
 * Recovers the journalled sandboxes and removes machines and disks that none of them owns. Resolves
 * when each sandbox is at rest, running or in a transition.
 */
export async function recoverAtStart(deps: RecoveryDeps): Promise<void> {
  const { registry, takeover, evacuation, journal, driver, mounts, snapshots } = deps;
  await evacuation?.forgetTakenOverRows();
  const rows = await journal.list();
  for (const row of rows) registry.add(row);
  await Promise.all(rows.map((row) => registry.holdImage(row)));
  const owned = new Set([...rows.map(({ vmId }) => vmId), ...snapshots.kept]);
  const unowned = (await driver.list()).filter((vmId) => !owned.has(vmId));
  await Promise.all(unowned.map((vmId) => removeUnowned(deps, vmId)));
  await mounts.recover(new Set(rows.map(({ id }) => id)));
  const recovered = registry.actors.map(async (actor) => {
    await actor.recover();
    await actor.republish();
  });
  await Promise.all([snapshots.recover(), ...recovered]);
  await takeover?.continueTakeovers(owned);
}

/**
 * Removes what is of no sandbox, unless this host has taken it from another. Resolves after the
 * first attempt: a process that hangs, or a file that cannot be removed, must not keep the host
 * from starting.
 */
async function removeUnowned(deps: RecoveryDeps, vmId: string): Promise<void> {
  const { driver, handover, uids, signal, log } = deps;
  log.warn({ vmId }, 'reclaim:sandbox');
  const attempt = async (): Promise<boolean> => {
    try {
      await driver.reclaim(vmId);
      if ((await handover?.isHandedOver(vmId)) === true) return true;
      await failpoint('reclaim unowned disk', () => driver.remove(vmId));
      return true;
    } catch (error) {
      log.error({ vmId, err: toError(error) }, 'reclaim:sandboxFailed');
      return false;
    }
  };
  const uid = await driver.userOf?.(vmId).catch(() => undefined);
  if (await attempt()) return;
  const isHeld = uid !== undefined && uids.hold(uid);
  // Where sandboxes move, this one may come back meanwhile: only the next agent start removes it.
  if (handover !== undefined) return;
  runInBackground('sandbox.removeUnowned', async () => {
    await repeatUntilDone(attempt, signal);
    if (isHeld && !signal.aborted) uids.release(uid);
  });
}
