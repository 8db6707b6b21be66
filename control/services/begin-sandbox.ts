import { AppError, type ErrorCode } from '../../shared/errors.ts';
import type { SandboxRecord } from '../../shared/schemas/sandbox-record.ts';
import type { Deps } from './deps.ts';
import type { JobCall } from '../dispatch/job-dispatch.ts';
import type { SandboxOfAccount } from './sandbox-actions.ts';
import { discardSandbox } from './discard-sandbox.ts';

/** After these errors the host has no part of the sandbox; after any other it may have one. */
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
 * Has a host create a sandbox, new or as a fork, at most once.
 * @param sandbox the id of the new sandbox
 * @returns the sandbox, once its host has journalled it
 * @throws AppError the host's error, or that it did not answer; no sandbox is left there then
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
      // The host may have been lost after it journalled the sandbox, which then exists.
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
