import { randomUUID } from 'node:crypto';
import { toError } from '../../shared/errors.ts';
import type { SandboxContext } from './sandbox-context.ts';
import { type StartState, withResources } from './sandbox-start.ts';

/** What a new sandbox begins with; without either, it boots with an empty disk. */
export interface Creation {
  /** The network slot of the prewarmed machine that it takes. */
  readonly slot?: number | undefined;
  /** Makes its disk from that of another sandbox, and tells how it begins. */
  readonly copy?: () => Promise<StartState>;
}

/**
 * Journals a new sandbox when it has capacity, slot and disk.
 * @throws AppError `no_capacity`, `host_full`, whatever `copy` throws; `removeUncreated` follows then
 */
export async function createSandbox(
  context: SandboxContext,
  { slot: given, copy }: Creation,
): Promise<void> {
  const make = async (slot: number): Promise<void> => {
    const state = (await copy?.()) ?? 'pending_start';
    const checkpoint = state === 'pending_resume' ? randomUUID() : undefined;
    await context.sandbox.insert(state, { slot, checkpoint });
  };
  await withResources(context, make, given);
}

/**
 * Removes what there is of a sandbox that could not be created.
 * @returns false when something of it is left; the next agent removes it, and until then nobody
 *   else may get its user and slot
 */
export async function removeUncreated(
  { sandbox, deps }: SandboxContext,
  { slot }: Creation,
): Promise<boolean> {
  const { driver, slots, log } = deps;
  const { id: sandboxId, vmId } = sandbox.row;
  try {
    await driver.reclaim(vmId);
    await driver.remove(vmId);
    if (slot !== undefined) await slots.release(slot);
    return true;
  } catch (error) {
    log.error({ sandboxId, err: toError(error) }, 'sandbox:removeFailed');
    return false;
  }
}
