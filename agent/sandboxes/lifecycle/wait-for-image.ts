import { Backoff } from '../../../shared/backoff.ts';
import { runInBackground } from '../../../shared/background.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import type { BuiltImage } from '../../images/built-image.ts';
import { ImageFailure } from '../../images/image-source.ts';
import type { SandboxBase } from '../../system/journal/sandbox-journal.ts';
import { repeatUntilDone } from '../../system/queues/until-done.ts';
import type { SandboxChange } from './journalled-sandbox.ts';
import type { SandboxContext } from './sandbox-context.ts';
import { toExitMessage } from './sandbox-rest.ts';
import { beginStart } from './sandbox-start.ts';

/*
 * A sandbox whose image its host does not have: it is pending, and holds neither memory nor slot
 * nor user meanwhile. The state is journalled, so the next agent brings the image, too.
 */

const RETRY_MS = { min: 500, max: 10_000 } as const;

/** The image as the journal keeps it. */
export const toBase = (reference: string, image: BuiltImage): SandboxBase => {
  const { digest, platform, config } = image;
  return { reference, digest, platform, config };
};

/** Whether the sandbox has to wait for its image before it can start. */
export async function lacksImage({ sandbox, deps }: SandboxContext): Promise<boolean> {
  const { id, vmId, image } = sandbox.row;
  if (image === undefined || deps.images.heldBy(id) !== undefined) return false;
  return deps.driver.needsImage(vmId);
}

/** Has a sandbox at rest wait for its image. @param change what else changes with that */
export async function beginImageWait(
  context: SandboxContext,
  cause: string,
  change: SandboxChange = {},
): Promise<void> {
  const begun = { runningAt: undefined, finishedAt: undefined, exitReason: undefined };
  const waiting = { ...change, checkpoint: undefined, ...begun };
  await context.sandbox.enter('pending_image', waiting, cause);
  awaitImage(context);
}

/** Brings the image outside the mailbox. The sandbox then starts, or fails. */
export function awaitImage(context: SandboxContext): void {
  const { sandbox, deps, imageWait } = context;
  const { id, accountId, image } = sandbox.row;
  if (image === undefined) throw new Error('the sandbox has the default image');
  const signal = imageWait.begin();
  const handle = async (outcome: () => Promise<void>): Promise<void> => {
    const attempt = async (): Promise<boolean> => {
      if (signal.aborted || sandbox.isDetached) return true;
      try {
        await context.send(async () => {
          if (!signal.aborted && sandbox.row.state === 'pending_image') await outcome();
        });
        return true;
      } catch (error) {
        deps.log.error({ sandboxId: id, err: toError(error) }, 'sandbox:imageWaitFailed');
        return false; // The journal could not be written, or the mailbox is full.
      }
    };
    if (!(await attempt())) await repeatUntilDone(attempt, signal);
  };
  runInBackground('sandbox.bringImage', async () => {
    try {
      const built = await patiently(signal, () =>
        deps.images.bring(id, image, { accountId, signal }),
      );
      await handle(() => startOn(context, toBase(image.reference, built)));
    } catch (error) {
      await handle(() => failWithout(context, toError(error)));
    }
  });
}

/** Repeats what the host refuses because it builds or resolves too much already. */
async function patiently<T>(signal: AbortSignal, bring: () => Promise<T>): Promise<T> {
  const backoff = new Backoff(RETRY_MS);
  const until = performance.now() + SANDBOX_LIMITS.sandboxImageWaitMsMax;
  for (;;) {
    try {
      return await bring();
    } catch (error) {
      if (!isBusy(error) || performance.now() > until) throw error;
      await backoff.pause({ signal, ref: false });
      signal.throwIfAborted();
    }
  }
}

const isBusy = (error: unknown): boolean =>
  error instanceof AppError && error.code === 'no_capacity';

/** Stops a sandbox that waits for its image. */
export async function stopImageWait(context: SandboxContext): Promise<void> {
  context.imageWait.cancel();
  const change = {
    finishedAt: new Date().toISOString(),
    exitReason: 'stopped',
    exitMessage: 'stopped before its image was there',
  } as const;
  await context.sandbox.enter('stopped', change, 'stop was asked for');
}

async function startOn(context: SandboxContext, image: SandboxBase): Promise<void> {
  const { sandbox, deps } = context;
  const { id, config } = sandbox.row;
  try {
    deps.capacity.refuseIfFull(config, id);
    const change = { image, checkpoint: undefined };
    await beginStart(context, 'pending_start', change, 'its image is on the host');
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    const message = `its image is there, but ${error.message}; start it once there is capacity`;
    await fail(context, { image, exitReason: 'no_capacity', exitMessage: message });
  }
}

async function failWithout(context: SandboxContext, error: Error): Promise<void> {
  const { deps, sandbox } = context;
  deps.log.warn({ sandboxId: sandbox.row.id, err: error }, 'sandbox:bringImageFailed');
  const isKnown = error instanceof ImageFailure || error instanceof AppError;
  const exitMessage = isKnown ? error.message : 'the host could not build its image: see its log';
  await fail(context, { exitReason: isBusy(error) ? 'no_capacity' : 'image_failed', exitMessage });
}

async function fail(
  { sandbox }: SandboxContext,
  change: SandboxChange & { readonly exitMessage: string },
): Promise<void> {
  const exitMessage = toExitMessage(change.exitMessage);
  const finishedAt = new Date().toISOString();
  await sandbox.enter('failed', { ...change, finishedAt, exitMessage }, exitMessage);
}
