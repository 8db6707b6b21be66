import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import { inSpan, type OpenSpan } from '../../../shared/spans.ts';
import type { HookResult } from '../../../shared/schemas/sandbox-record.ts';
import type { SandboxMount } from '../../../shared/schemas/sandbox-mount.ts';
import { repeatUntilDone } from '../../system/queues/until-done.ts';
import { BootError, type Machine, type MachineEnd } from '../../machines/driver.ts';
import type { SandboxChange } from './journalled-sandbox.ts';
import { monotonicNow } from '../../system/monotonic-clock.ts';
import { runHook } from './copy-hook.ts';
import { cleanUp } from './sandbox-cleanup.ts';
import type { SandboxContext } from './sandbox-context.ts';
import { beginStop, finish, rest, stopPaused, toExitMessage } from './sandbox-rest.ts';
import { trustOwnAuthority } from '../holds/trust-authority.ts';
import { StartClock } from './start-clock.ts';

/* How a sandbox starts: by a boot, from a template, as a prewarmed VM, or from its checkpoint. */

type Mounts = readonly SandboxMount[] | undefined;

/** The states in which a sandbox starts. */
export type StartState = 'pending_start' | 'pending_resume';

const NEVER_RAN: MachineEnd = { reason: 'stopped', message: 'stopped before it ran' };

/**
 * Holds capacity, the sandbox's disks and a network slot while `make` runs, and keeps them if it
 * succeeds. A disk that could not be released again stays: call {@link cleanUp}.
 * @param given the slot of a prewarmed VM, instead of a new one; not released on failure
 * @throws AppError `no_capacity`, `host_full`, those of {@link holdDisks}; what `make` throws
 */
export async function withResources(
  context: SandboxContext,
  make: (slot: number) => Promise<void>,
  { given, mounts }: { readonly given?: number | undefined; readonly mounts?: Mounts } = {},
): Promise<void> {
  const { capacity, slots, log } = context.deps;
  const { config } = context.sandbox.row;
  const giveBack = capacity.hold(context.sandbox.row);
  let releaseDisks: (() => Promise<void>) | undefined;
  try {
    releaseDisks = await holdDisks(context, mounts ?? config.mounts ?? []);
    if (given !== undefined) return await make(given);
    const { index } = await slots.lease();
    try {
      await make(index);
    } catch (error) {
      await slots.release(index);
      throw error;
    }
  } catch (error) {
    giveBack();
    await releaseDisks?.().catch((err: unknown) => {
      log.error({ sandboxId: context.sandbox.row.id, err: toError(err) }, 'mounts:releaseFailed');
    });
    throw error;
  }
}

/**
 * Holds the disks that the sandbox mounts; a sandbox whose disk another host gets ends at once.
 * @returns releases those that it did not hold before
 * @throws AppError `disk_in_use`, `disk_moved`, `not_found`, `bad_request`, `unavailable`
 */
export function holdDisks(
  context: SandboxContext,
  mounts: readonly SandboxMount[],
): Promise<() => Promise<void>> {
  const { sandbox, deps } = context;
  return deps.mounts.hold(sandbox.row, mounts, (reason) => handleDiskLost(context, reason));
}

/** Ends a machine that has a disk mounted that another host got, also one paused in memory. */
export function handleDiskLost(context: SandboxContext, reason: Error): void {
  const { sandbox, current, deps } = context;
  const { message } = reason;
  deps.log.error({ sandboxId: sandbox.row.id, message }, 'sandbox:diskLost');
  const why = `a disk that it mounts was given to another host: ${message}`;
  current.run?.abort(new Error(why, { cause: reason }));
  runInBackground('sandbox.kill', () => current.machine?.kill(why));
  deps.driver.releaseDisks(sandbox.row.vmId);
  if (deps.driver.traits.pausedStaysInMemory) endPaused(context, why);
}

/**
 * Ends a machine that is paused in memory, or that is paused after all because its pause or resume
 * was under way. Repeated until that is journalled.
 */
function endPaused(context: SandboxContext, why: string): void {
  const { sandbox, copies, deps } = context;
  const lost = sandbox.row;
  const attempt = async (): Promise<boolean> => {
    const { state, isDeleting, bootId } = sandbox.row;
    // A machine that was booted since has only disks that its host had then.
    if (sandbox.isDetached || isDeleting || bootId !== lost.bootId) return true;
    if (state === 'pausing' || state === 'pending_resume') return false;
    if (state !== 'paused') return true;
    if (copies.copying !== undefined) return false; // The machine stands still meanwhile.
    await stopPaused(context, { reason: 'killed_by_host', message: why });
    return true;
  };
  const end = async (): Promise<boolean> => {
    try {
      return await context.send(attempt);
    } catch (error) {
      deps.log.error({ sandboxId: lost.id, err: toError(error) }, 'sandbox:endPausedFailed');
      return false;
    }
  };
  runInBackground('sandbox.endPaused', async () => {
    if (!(await end())) await repeatUntilDone(end, sandbox.detached);
  });
}

/**
 * Starts a sandbox at rest.
 * @param change what else changes; its former end is forgotten unless this names one
 * @throws AppError `no_capacity`, `host_full`
 */
export async function beginStart(
  context: SandboxContext,
  to: StartState,
  change: SandboxChange,
  cause: string,
): Promise<void> {
  const clock = new StartClock();
  const { sandbox, deps } = context;
  const { row } = sandbox;
  // A sandbox that waited for its image has no user yet, and no disk: it may take a prewarmed VM.
  const isFirst = row.uid < 0;
  const { mounts = [] } = change.config ?? row.config;
  const image = deps.images.heldBy(row.id);
  const prewarmed = isFirst ? deps.prewarmed.take(row.config, image) : undefined;
  const owner = isFirst ? (prewarmed ?? { uid: deps.uids.take() }) : undefined;
  try {
    await withResources(
      context,
      async (slot) => {
        const begun = { runningAt: undefined, finishedAt: undefined };
        const { vmId, uid } = { ...row, ...owner };
        // A boot continues from no memory, so that nothing was copied with it.
        const hook = to === 'pending_start' ? { hook: undefined } : {};
        if (isFirst) await deps.handover?.storage.claim(vmId);
        return sandbox.enter(
          to,
          { exitReason: undefined, ...hook, ...change, ...begun, vmId, uid, slot },
          cause,
        );
      },
      { given: prewarmed?.slot, mounts },
    );
  } catch (error) {
    if (prewarmed !== undefined) await deps.prewarmed.discard(prewarmed);
    else if (owner !== undefined) deps.uids.release(owner.uid);
    if (mounts.length > 0) await cleanUp(context, undefined); // Also of what could not be released.
    throw error;
  }
  if (isFirst) deps.uids.release(row.uid);
  startMachine(context, clock);
}

/**
 * Boots or resumes the machine when its turn comes, outside the mailbox; the outcome is an event.
 */
export function startMachine(context: SandboxContext, clock = new StartClock()): void {
  const { sandbox, current, watchdog, deps } = context;
  clock.end('placed');
  const run = current.begin(clock);
  const onTurn = (): void => watchdog.watchStart(deps.bootTimeoutMs);
  const start = async (span: OpenSpan): Promise<void> => {
    try {
      const machine = await run.start(sandbox.row, deps, onTurn);
      span.set({ 'berth.machine_origin': machine.origin?.kind });
      const hook = await runHook(context, machine, run.signal);
      await trustOwnAuthority(deps, sandbox.row, machine, run.signal);
      current.report(run, { kind: 'started', machine, hook });
    } catch (error) {
      span.fail(error instanceof BootError ? error.reason : 'start_failed');
      current.report(run, { kind: 'startFailed', error: toError(error) });
    }
  };
  const attributes = { 'berth.sandbox_id': sandbox.row.id };
  runInBackground('sandbox.start', () => inSpan({ name: 'machine.start', attributes }, start));
}

/** @param hook the result of its hook, if one ran */
export async function handleStarted(
  context: SandboxContext,
  machine: Machine,
  hook?: HookResult,
): Promise<void> {
  const { sandbox, execs, processes, current } = context;
  const { run } = current;
  if (run === undefined) return;
  if (sandbox.row.state === 'stopping') {
    current.watchEnd(run, machine);
    return beginStop(context); // The machine was ready before the stop could abort its start.
  }
  const now = monotonicNow();
  await sandbox.enter(
    'running',
    {
      ...(hook === undefined ? {} : { hook }),
      checkpoint: undefined,
      nameAddresses: undefined, // Its slot has them.
      runningAt: new Date().toISOString(),
      runningSince: now,
      expiresAt: now + sandbox.row.config.maxTtlSeconds * 1000,
      idleSince: now,
    },
    'the guest is ready',
  );
  current.watchEnd(run, machine);
  execs.attach(machine.guest);
  processes.connect(machine.guest);
  reportStarted(context, run.clock, machine);
}

/** Logs the start and its phases; a machine of a former agent was not started here. */
function reportStarted(
  { sandbox, deps }: SandboxContext,
  clock: StartClock,
  { origin }: Machine,
): void {
  if (origin === undefined) return;
  clock.end('restored', origin.beganAt);
  clock.end('ready');
  const { id: sandboxId, vmId } = sandbox.row;
  const started = { sandboxId, vmId, origin: origin.kind, timesMs: clock.times };
  deps.log.info(started, 'sandbox:started');
  deps.observeStart(origin.kind, clock.times);
}

export async function handleStartFailed(context: SandboxContext, error: Error): Promise<void> {
  const { state } = context.sandbox.row;
  if (state === 'stopping') return finish(context, NEVER_RAN);
  if (state === 'pending_resume') return handleResumeFailed(context, error.message);
  const reason = error instanceof BootError ? error.reason : 'boot_failed';
  await finish(context, { reason, message: error.message });
}

/** If the checkpoint was not consumed, the sandbox returns to paused. */
async function handleResumeFailed(context: SandboxContext, message: string): Promise<void> {
  const { sandbox, deps } = context;
  if (!(await deps.driver.hasCheckpoint(sandbox.row.vmId))) {
    return finish(context, { reason: 'resume_failed', message });
  }
  const exitMessage = toExitMessage(`it could not be resumed: ${message}`);
  await rest(context, 'paused', { exitMessage }, exitMessage);
}
