import { runInBackground } from '../../../shared/background.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { repeatUntilDone } from '../../system/queues/until-done.ts';
import type { Machine, MachineSpec } from '../../machines/driver.ts';
import { endInterrupted } from './copy-hook.ts';
import { copyMsMax } from './copy-gate.ts';
import { awaitImage } from './wait-for-image.ts';
import { cleanUp } from './sandbox-cleanup.ts';
import type { SandboxContext } from './sandbox-context.ts';
import { awaitRequests, handlePaused, PAUSED } from './sandbox-pause.ts';
import { beginStop, finish, toExitMessage } from './sandbox-rest.ts';
import { machineSpec } from './sandbox-row.ts';
import { handleDiskLost, handleStarted, holdDisks, startMachine } from './sandbox-start.ts';

/* Recovery of a sandbox after its agent was restarted. */

const NOT_CONTINUED = 'it did not continue in time after the agent of the host ended';
const NOT_PAUSED = 'the agent of the host ended meanwhile';

/** Continues from the journalled state, whatever the former agent was doing. */
export async function recoverSandbox(context: SandboxContext): Promise<void> {
  const { sandbox, execs, deps } = context;
  const { state, slot, vmId } = sandbox.row;
  await execs.load();
  if (state === 'pending_image') return awaitImage(context);
  if (slot === undefined) return recoverAtRest(context);
  deps.capacity.holdExisting(sandbox.row);
  await takeOverDisks(context);
  if (state === 'pending_start' || state === 'pending_resume') return recoverPending(context);
  if (state === 'pausing' && (await deps.driver.hasCheckpoint(vmId))) {
    return handlePaused(context);
  }
  await takeOver(context);
}

/**
 * Ends a sandbox that could not be recovered; it can be started or deleted then. Resolves after the
 * first attempt: while the journal cannot be written, the others of the host must not wait for it.
 */
export async function giveUpAtLast(context: SandboxContext, cause: Error): Promise<void> {
  const { sandbox, current, deps } = context;
  const { run } = current;
  const attempt = async (): Promise<boolean> => {
    // Its machine's end was handled meanwhile, or it has been started again since.
    if (current.run !== run) return true;
    try {
      await giveUp(context, cause);
      return true;
    } catch (error) {
      deps.log.error({ sandboxId: sandbox.row.id, err: toError(error) }, 'sandbox:giveUpFailed');
      return false;
    }
  };
  if (await attempt()) return;
  const again = (): Promise<boolean> => context.send(attempt).catch(() => false);
  runInBackground('sandbox.giveUp', () => repeatUntilDone(again, sandbox.detached));
}

/**
 * A sandbox that may have a checkpoint is paused, also when the storage cannot be read: a resume
 * verifies it. A sandbox that keeps its disks while it is paused ends if it has lost one of them.
 */
async function giveUp(context: SandboxContext, error: Error): Promise<void> {
  const { isDeleting, slot, state, vmId } = context.sandbox.row;
  const { driver } = context.deps;
  if (isDeleting || slot === undefined) return;
  const mayStay = !(isDiskMoved(error) && driver.traits.pausedStaysInMemory);
  if (mayStay && (state === 'pausing' || state === 'pending_resume')) {
    const message = toExitMessage(`the host could not take it over: ${error.message}`);
    const mayBePaused = await driver.hasCheckpoint(vmId).catch(() => true);
    if (mayBePaused) return handlePaused(context, message);
  }
  const message = `the host ended it, because it could not take it over: ${error.message}`;
  await finish(context, { reason: 'killed_by_host', message });
}

/**
 * Cleans up after the machine of a sandbox at rest. A checkpoint is verified when it is resumed.
 */
async function recoverAtRest(context: SandboxContext): Promise<void> {
  const { sandbox, execs, deps } = context;
  const { vmId, state } = sandbox.row;
  const { driver, capacity } = deps;
  const isPaused = state === 'paused';
  await cleanUp(context, undefined);
  if (isPaused && driver.traits.pausedStaysInMemory && (await driver.hasCheckpoint(vmId))) {
    capacity.holdMemory(sandbox.row);
    try {
      await takeOverDisks(context);
    } catch (error) {
      handleDiskLost(context, toError(error));
    }
  }
  await execs.loseAll(isPaused ? 'cancelled' : 'failed', isPaused ? PAUSED : 'the sandbox ended');
}

/** Starts the machine again, unless it was resuming and its checkpoint is used up. */
async function recoverPending(context: SandboxContext): Promise<void> {
  const { sandbox, deps } = context;
  const { state, vmId } = sandbox.row;
  if (state === 'pending_start' || (await deps.driver.hasCheckpoint(vmId))) {
    await deps.driver.reclaim(vmId);
    return startMachine(context);
  }
  if (deps.driver.traits.pausedStaysInMemory) return takeOverResumed(context);
  if (sandbox.row.hook?.status === 'running') return takeOverHooked(context);
  const message = 'the agent of the host ended while the checkpoint was used up';
  await finish(context, { reason: 'resume_failed', message });
}

/** The machine had resumed, and its guest had answered; only that was not journalled yet. */
async function takeOverResumed(context: SandboxContext): Promise<void> {
  const { sandbox, current, deps } = context;
  current.begin();
  const found = await deps.driver.recover(await machineSpec(sandbox.row, deps));
  if ('reason' in found) {
    return finish(context, { reason: 'resume_failed', message: found.message });
  }
  await handleStarted(context, found);
}

/** The guest of a copy had its identity, and its hook ran: whatever became of it, it continues. */
async function takeOverHooked(context: SandboxContext): Promise<void> {
  const { sandbox, current, deps } = context;
  const run = current.begin();
  const found = await deps.driver.recover(await machineSpec(sandbox.row, deps));
  if ('reason' in found) {
    return finish(context, { reason: 'resume_failed', message: found.message });
  }
  run.machine = found;
  context.watchdog.watchStart(deps.bootTimeoutMs);
  runInBackground('sandbox.endHook', async () => {
    try {
      const hook = await endInterrupted(found, run.signal);
      current.report(run, { kind: 'started', machine: found, hook });
    } catch (error) {
      current.report(run, { kind: 'startFailed', error: toError(error) });
    }
  });
}

/** Takes over a machine that ran when the former agent ended, and that may have ended since. */
async function takeOver(context: SandboxContext): Promise<void> {
  const { sandbox, current, execs, processes, deps } = context;
  const run = current.begin();
  const spec: MachineSpec = await machineSpec(sandbox.row, deps);
  const found = await deps.driver.recover(spec);
  if ('reason' in found) return finish(context, found);
  current.watchEnd(run, found);
  if (sandbox.row.state === 'stopping') {
    sandbox.announceState('recovered while stopping');
    return beginStop(context);
  }
  execs.attach(found.guest);
  processes.connect(found.guest);
  sandbox.resumeLimits();
  continueCopied(context, found);
  // Sent as an event, which is repeated while it cannot be journalled: the machine is sound.
  if (sandbox.row.state === 'pausing')
    current.report(run, { kind: 'pauseFailed', error: new Error(NOT_PAUSED) });
  else sandbox.announceState('recovered');
  if (sandbox.row.state === 'draining') awaitRequests(context, true);
}

/**
 * Has a machine continue that may have been stopped for a fork or pause. Actions wait for that; a
 * machine that does not continue in time is killed, as after a fork.
 */
function continueCopied(
  { sandbox, current, copies, deps }: SandboxContext,
  machine: Machine,
): void {
  const { id: sandboxId, vmId, config } = sandbox.row;
  const attempt = async (): Promise<boolean> => {
    if (current.machine !== machine) return true; // The machine has ended.
    try {
      await deps.driver.continueAfterCrash(vmId);
      return true;
    } catch (error) {
      deps.log.warn({ sandboxId, err: toError(error) }, 'sandbox:continueFailed');
      return false;
    }
  };
  const continuing = async (): Promise<void> => {
    if (!(await attempt())) await repeatUntilDone(attempt, sandbox.detached);
  };
  const over = Promise.race([continuing(), machine.ended]);
  copies.hold(over, copyMsMax(config.memSizeMib), () => current.killOverdue(NOT_CONTINUED));
}

const isDiskMoved = (error: unknown): boolean =>
  error instanceof AppError && error.code === 'disk_moved';

/**
 * Takes over the disks that a former agent held for the sandbox. They are mounted and nobody else
 * can get them, so what fails for the moment is retried while the machine goes on.
 * @throws AppError `disk_moved` when an operator gave one to another host
 */
async function takeOverDisks(context: SandboxContext): Promise<void> {
  const { sandbox, deps } = context;
  const attempt = async (): Promise<boolean> => {
    try {
      await holdDisks(context, sandbox.row.config.mounts ?? []);
      return true;
    } catch (error) {
      if (isDiskMoved(error)) throw error;
      deps.log.warn({ sandboxId: sandbox.row.id, err: toError(error) }, 'mounts:takeOverFailed');
      return false;
    }
  };
  if (await attempt()) return;
  const again = async (): Promise<boolean> => {
    const { isDeleting, slot, state } = sandbox.row;
    if (isDeleting || (slot === undefined && state !== 'paused')) return true;
    try {
      return await attempt();
    } catch (error) {
      handleDiskLost(context, toError(error));
      return true;
    }
  };
  // A message is refused while too many wait.
  const retry = (): Promise<boolean> => context.send(again).catch(() => false);
  runInBackground('mounts.takeOver', () => repeatUntilDone(retry, sandbox.detached));
}
