import { setTimeout as sleep } from 'node:timers/promises';
import { runInBackground } from '../../shared/background.ts';
import type { Deps } from './deps.ts';
import type { SandboxOfAccount } from './sandbox-actions.ts';

const TRY_EVERY_MS = 1_000;
const TRIES_MAX = 60;

/**
 * Tells a host that a sandbox which it may have begun is not wanted: its caller was told that there
 * is none. A host that is away finds the word in its queue when it returns, however late. Resolves
 * after the first try; while Redis is away further ones follow.
 */
export async function discardSandbox(
  { jobs }: Deps,
  hostId: string,
  payload: SandboxOfAccount,
  requestId: string,
): Promise<void> {
  const deadlineAt = Number.MAX_SAFE_INTEGER;
  const tell = async (): Promise<boolean> => {
    try {
      await jobs.post({ kind: 'sandbox.discard', payload, hostId, requestId, deadlineAt });
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
  if (!(await tell())) runInBackground('sandbox.discard', tellLater);
}
