import { AppError, type ErrorCode } from '../../shared/errors.ts';
import type { SandboxRecord } from '../../shared/schemas/sandbox-record.ts';
import type { Deps } from './deps.ts';
import type { JobCall } from '../dispatch/job-dispatch.ts';
import type { SandboxOfAccount } from './sandbox-actions.ts';
import { discardSandbox } from './discard-sandbox.ts';

/** With these nothing remains on the host; after any other failure something may. */
const NOTHING_LEFT: ReadonlySet<ErrorCode> = new Set([
  'no_capacity',
  'host_full',
  'not_enabled',
  'not_found',
  'sandbox_start_conflict',
  'sandbox_pausing',
  'sandbox_stopping',
  'sandbox_terminated',
]);

/**
 * Has a host begin a sandbox, new or as a copy of another one, at most once.
 * @param sandbox the one to begin
 * @returns it, once its host has journalled it
 * @throws AppError what the host says, or that it does not answer; nothing remains there then
 */
export async function beginSandbox<K extends 'sandbox.create' | 'sandbox.fork'>(
  deps: Deps,
  sandbox: SandboxOfAccount,
  call: JobCall<K>,
): Promise<SandboxRecord> {
  try {
    return (await deps.jobs.call(call)).result.sandbox;
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    if (error.code === 'outcome_unknown' || error.code === 'timeout') {
      // The host may have journalled it and been lost only then: that is a beginning, too.
      const { accountId, sandboxId } = sandbox;
      const { sandboxes } = deps.directory;
      const published = await sandboxes.get(accountId, sandboxId).catch(() => undefined);
      if (published !== undefined) return published;
    }
    if (!NOTHING_LEFT.has(error.code)) {
      await discardSandbox(deps, call.hostId, sandbox, call.requestId);
    }
    if (error.code !== 'outcome_unknown') throw error;
    throw new AppError('unavailable', 'the host was lost meanwhile; nothing was created', {
      cause: error,
    });
  }
}
