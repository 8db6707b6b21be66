import { setTimeout as sleep } from 'node:timers/promises';
import { runInBackground } from '../../shared/background.ts';
import { AppError } from '../../shared/errors.ts';
import type { JobCall } from './job-dispatch.ts';
import type { Deps } from './deps.ts';

const TRY_EVERY_MS = 1_000;
const TRIES_MAX = 60;

/**
 * Has a host delete a sandbox or snapshot that it may have made although the caller was told that
 * there is none. A host that cannot be reached now finds the job in its queue when it returns,
 * however late. Resolves after the first attempt; while Redis cannot be reached, more attempts
 * follow.
 */
export async function discardOnHost<K extends 'sandbox.discard' | 'snapshot.discard'>(
  { jobs }: Deps,
  call: Omit<JobCall<K>, 'deadlineAt' | 'signal'>,
): Promise<void> {
  const deadlineAt = Number.MAX_SAFE_INTEGER;
  const tell = async (): Promise<boolean> => {
    try {
      await jobs.post({ ...call, deadlineAt });
      return true;
    } catch {
      return false;
    }
  };
  const tellLater = async (): Promise<void> => {
    for (let tries = 1; tries < TRIES_MAX; tries += 1) {
      await sleep(TRY_EVERY_MS, undefined, { ref: false });
      if (await tell()) return;
    }
  };
  if (!(await tell())) runInBackground('host.discard', tellLater);
}

/** The name of what a host has still to discard is taken until it has done so. */
export const beingUndone = (name: string): AppError =>
  new AppError('unavailable', `a creation of ${name} failed and is being undone; try again`);
