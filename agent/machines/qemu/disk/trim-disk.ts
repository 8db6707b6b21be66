import type { GuestChannel } from '../../guest-link/guest-channel.ts';
import { toError } from '../../../../shared/errors.ts';
import type { Logger } from '../../../../shared/log.ts';

/** How long a guest may trim, and be waited for: a pause or copy takes so much longer at most. */
const TRIM_MS_MAX = 200;
const ANSWER_MS_MAX = 2_000;

interface TrimmingHost {
  /** Whether the storage answers and has free space: a trim reads, and may write a little. */
  readonly mayTrim: () => boolean;
  readonly log: Logger;
}

/**
 * Has a running guest give back what deleted files have left on its disk, before its layers are
 * frozen. Best effort: guests of former versions cannot, and what is not trimmed now is next time.
 */
export async function trimDisk(
  { mayTrim, log }: TrimmingHost,
  guest: Pick<GuestChannel, 'trim'>,
  vmId: string,
): Promise<void> {
  if (!mayTrim()) return;
  try {
    await guest.trim(TRIM_MS_MAX, ANSWER_MS_MAX);
  } catch (error) {
    log.debug({ err: toError(error), vmId }, 'machine:notTrimmed');
  }
}
