import type { Logger } from '../../shared/log.ts';
import type { SandboxJournal } from '../journal/sandbox-journal.ts';
import { failpoint } from '../system/failpoint.ts';
import type { MachineDriver } from './machine-driver.ts';
import type { SandboxCarrier } from './moving/sandbox-carrier.ts';
import type { SandboxAdopter } from './sandbox-adopter.ts';
import type { SandboxDepartures } from './sandbox-departures.ts';
import type { SandboxMounts } from './sandbox-mounts.ts';
import type { SandboxRegistry } from './sandbox-registry.ts';
import type { Snapshots } from './snapshots.ts';

export interface RecoveryDeps {
  readonly registry: SandboxRegistry;
  /** Undefined where sandboxes stay on their host, as are `departures` and `carrier`. */
  readonly adopter: SandboxAdopter | undefined;
  readonly departures?: SandboxDepartures | undefined;
  readonly carrier?: SandboxCarrier | undefined;
  readonly journal: SandboxJournal;
  readonly driver: MachineDriver;
  readonly mounts: SandboxMounts;
  readonly snapshots: Snapshots;
  readonly log: Logger;
}

/**
 * Recovers the journalled sandboxes and removes machines and disks that none of them owns. Resolves
 * when each sandbox is at rest, running or in a transition.
 */
export async function recoverSandboxes(deps: RecoveryDeps): Promise<void> {
  const { registry, adopter, departures, journal, driver, mounts, snapshots } = deps;
  await departures?.forgetTakenRows();
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
  await adopter?.continueTaking(owned);
}

/** Removes what is of no sandbox, unless this host has taken it from another. */
async function removeUnowned({ driver, carrier, log }: RecoveryDeps, vmId: string): Promise<void> {
  log.warn({ vmId }, 'reclaim:sandbox');
  await driver.reclaim(vmId);
  if ((await carrier?.isCarried(vmId)) === true) return;
  await failpoint('reclaim unowned disk', () => driver.remove(vmId));
}
