import { toError } from '../../shared/errors.ts';
import { isServing } from '../../shared/sandbox-lifecycle.ts';
import type { SandboxActor } from './lifecycle/sandbox-actor.ts';
import type { SandboxActorDeps } from './lifecycle/sandbox-context.ts';

/**
 * Ends a sandbox's machine for the host's shutdown: pauses it where memory is safe then, else stops
 * it. What fails is logged: the next agent finds the sandbox as it is.
 * @param until on the monotonic clock (`performance.now()`), in milliseconds
 */
export async function shutDown(
  actor: SandboxActor,
  until: number,
  { driver, log }: Pick<SandboxActorDeps, 'driver' | 'log'>,
): Promise<void> {
  const settled = (): Promise<void> => actor.settled(until - performance.now());
  const attempt = async (action: () => Promise<void>): Promise<void> => {
    try {
      await action();
      await settled();
    } catch (error) {
      const { state } = actor.row;
      log.warn({ sandboxId: actor.id, state, err: toError(error) }, 'sandbox:shutdownFailed');
    }
  };
  await actor.begun().catch(toError);
  if (actor.row.state === 'pending_image') return; // The next agent brings the image.
  // A sandbox that is resuming or pausing would lose its memory if it were stopped now. Requests
  // that a pause waits for are not waited for here.
  if (!['pending_start', 'draining'].includes(actor.row.state)) await settled();
  const { pausedStaysInMemory } = driver.traits;
  if (isServing(actor.row.state) && !pausedStaysInMemory) await attempt(() => actor.pauseNow());
  const isInMemory = actor.row.state === 'paused' && pausedStaysInMemory;
  if (actor.row.slot !== undefined || isInMemory) await attempt(() => actor.stop());
  if (actor.row.state === 'paused') await attempt(() => actor.releaseDisks());
}
