import { toError } from '../../../shared/errors.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import type { HookResult } from '../../../shared/schemas/sandbox-record.ts';
import { GuestFailure } from '../../machines/guest-link/guest-errors.ts';
import { INTERRUPTED } from '../../system/journal/unfinished-hook.ts';
import type { GuestLink } from '../../machines/guest-link/guest-link.ts';
import type { GuestHookEnd } from '../../machines/guest-link/guest-types.ts';
import type { Machine } from '../../machines/driver.ts';
import type { SandboxContext } from './sandbox-context.ts';

/*
 * The hook of a sandbox runs once in each copy that continues from memory, while all other
 * processes of the copy are frozen. Whatever becomes of it, they continue.
 *
 * Programs with random generators of their own (Node's OpenSSL, Python) draw the same numbers in
 * each copy unless a hook tells them: Debian's cloud kernel has no driver for vmgenid, by which
 * hypervisors announce a copy, and none of these programs listens to it.
 */

/** Answers of a guest that is older than hooks. */
const NOT_KNOWN: ReadonlySet<GuestFailure['code']> = new Set([
  'invalid',
  'unknownProcess',
  'unsupported',
]);

function resultOf({ exitCode, signal, isTimedOut }: GuestHookEnd): HookResult {
  if (isTimedOut) {
    const message = `it was killed after ${SCHEMA_LIMITS.copyHookMsMax / 1000} s`;
    return { status: 'timed_out', message };
  }
  if (exitCode === 0) return { status: 'completed', exitCode };
  if (exitCode !== undefined) return { status: 'failed', exitCode, message: 'it failed' };
  return { status: 'failed', message: `signal ${signal} ended it` };
}

function failureOf(error: unknown): HookResult {
  if (!(error instanceof GuestFailure)) {
    return {
      status: 'interrupted',
      message: `its guest did not answer: ${toError(error).message}`,
    };
  }
  if (!NOT_KNOWN.has(error.code)) return { status: 'failed', message: error.reason };
  const message = 'its memory is of a version without hooks: stop and start its source';
  return { status: 'unsupported', message };
}

/** Once, whatever happens: the guest ends a hook whose channel breaks. */
async function run(guest: GuestLink, command: string, signal: AbortSignal): Promise<HookResult> {
  const channel = await guest.opened(signal);
  try {
    return resultOf(await channel.runHook(command));
  } catch (error) {
    signal.throwIfAborted();
    return failureOf(error);
  }
}

/**
 * Runs the hook of a copy whose processes are frozen, if it is due, and lets them continue.
 * @returns the result, to be journalled with the state that follows; undefined when none was due
 * @throws the signal's reason, or an AbortError when the guest has ended
 */
export async function runHook(
  context: SandboxContext,
  machine: Machine,
  signal: AbortSignal,
): Promise<HookResult | undefined> {
  const { sandbox, watchdog, deps } = context;
  const { config, hook } = sandbox.row;
  if (hook?.status !== 'pending') return undefined;
  // Journalled first: from here on, the next agent takes the machine over and thaws it.
  await context.send(() => sandbox.setHook({ status: 'running' }));
  watchdog.watchStart(deps.bootTimeoutMs + SCHEMA_LIMITS.copyHookMsMax);
  const result = await run(machine.guest, config.copyHook ?? 'true', signal);
  await machine.guest.call(signal, (channel) => channel.thaw());
  return result;
}

/** The result of a hook that a former agent did not see end, once the machine is taken over. */
export async function endInterrupted(machine: Machine, signal: AbortSignal): Promise<HookResult> {
  await machine.guest.call(signal, (channel) => channel.thaw());
  return INTERRUPTED;
}
