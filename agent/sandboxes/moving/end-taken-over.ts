import type { Directory } from '../../../shared/directory/directory.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import type { Journal } from '../../system/journal/journal.ts';
import { takenOverElsewhere } from './taken-over-elsewhere.ts';
import { type HostGroups, MACHINES_GROUP } from '../../system/helper-group.ts';
import { MachineCgroup } from '../../machines/shim/machine-cgroup.ts';

interface EndTakenOverParts extends HostGroups, Pick<Directory, 'sandboxes'> {
  readonly hostId: string;
  readonly journal: Journal;
  readonly log: Logger;
}

/**
 * Kills machines of sandboxes that other hosts have by now. Call it before the storage is opened: a
 * host that was shut out of it cannot do that, and its machines would run on beside the others.
 */
export async function endTakenOver(parts: EndTakenOverParts): Promise<void> {
  const { journal, cgroups, cgroupParent, log } = parts;
  const rows = (await journal.sandboxes.list()).filter(({ slot }) => slot !== undefined);
  const running = rows.map((row) => ({ row }));
  try {
    for (const { of, by } of await takenOverElsewhere(parts, running)) {
      const { id: sandboxId, vmId } = of.row;
      log.warn({ sandboxId, vmId, by }, 'sandbox:taken');
      await new MachineCgroup(cgroups, `${cgroupParent}/${MACHINES_GROUP}/${vmId}`).kill();
    }
  } catch (error) {
    log.warn({ err: toError(error) }, 'sandbox:askTakenFailed');
  }
}
