import { randomUUID } from 'node:crypto';
import { toError } from '../../../shared/errors.ts';
import type { SandboxRow } from '../../system/journal/sandbox-journal.ts';
import { repeatUntilDone } from '../../system/queues/until-done.ts';
import type { SandboxContext } from './sandbox-context.ts';
import type { StoredPolicy } from '../holds/sandbox-policies.ts';
import { type StartState, withResources } from './sandbox-start.ts';

/** The fields that a fork has from its source, as that was when the copy began. */
export type Inherited = Pick<SandboxRow, 'config' | 'environment'> & StoredPolicy;

/** A copy of another sandbox's disk and memory. */
export interface Copied {
  /** The state in which the new sandbox starts. */
  readonly state: StartState;
  /** In place of what its row has had until then. */
  readonly inherited?: Inherited;
}

/**
 * Optional inputs: a prewarmed VM's slot, or a callback that copies the parent's disk and memory.
 */
export interface Creation {
  /** The network slot of the prewarmed VM that the sandbox takes. */
  readonly slot?: number | undefined;
  /** Copies another sandbox's disk and memory. */
  readonly copy?: () => Promise<Copied>;
  /** The host does not have the image yet: the sandbox holds nothing until it does. */
  readonly awaitsImage?: boolean;
}

const NOT_COPIED: Copied = { state: 'pending_start' };

/**
 * Reserves capacity and a slot for a new sandbox, copies its disk if it is a fork, and journals it.
 * @throws AppError `no_capacity`, `host_full`; what `copy` throws. Call {@link removeUncreated}
 *   then
 */
export async function admitSandbox(
  context: SandboxContext,
  { slot: given, copy, awaitsImage = false }: Creation,
): Promise<void> {
  if (awaitsImage) {
    const copied = await copy?.(); // The source has no disk either; it refuses what the state forbids.
    await context.sandbox.insert('pending_image', { ...copied?.inherited });
    context.deps.capacity.release(context.sandbox.row.id); // Releases control's reservation.
    return;
  }
  const make = async (slot: number): Promise<void> => {
    const { state, inherited } = (await copy?.()) ?? NOT_COPIED;
    const checkpoint = state === 'pending_resume' ? randomUUID() : undefined;
    await context.deps.handover?.storage.claim(context.sandbox.row.vmId);
    const { copyHook = '' } = (inherited ?? context.sandbox.row).config;
    const isHooked = state === 'pending_resume' && copyHook !== '';
    const hook = isHooked ? ({ status: 'pending' } as const) : undefined;
    await context.sandbox.insert(state, { ...inherited, slot, checkpoint, hook });
  };
  await withResources(context, make, { given });
}

/**
 * Removes the remains of a sandbox whose creation failed. If that fails, retries in the background.
 * @returns `removed` resolves when nothing is left, or the agent ends; the uid must not be reused
 *   before
 */
export async function removeUncreated(
  context: SandboxContext,
  creation: Creation,
): Promise<{ readonly removed: Promise<void> }> {
  const attempt = (): Promise<boolean> => attemptRemoval(context, creation);
  if (await attempt()) return { removed: Promise.resolve() };
  return { removed: repeatUntilDone(attempt, context.sandbox.detached) };
}

/** @returns whether everything is removed */
async function attemptRemoval(
  { sandbox, deps }: SandboxContext,
  { slot }: Creation,
): Promise<boolean> {
  const { driver, slots, mounts, log } = deps;
  const { id: sandboxId, vmId } = sandbox.row;
  try {
    await driver.reclaim(vmId);
    await driver.remove(vmId);
    await mounts.retain(sandboxId, []);
    if (slot !== undefined) await slots.release(slot);
    return true;
  } catch (error) {
    log.error({ sandboxId, err: toError(error) }, 'sandbox:removeFailed');
    return false;
  }
}
