import { setTimeout as sleep } from 'node:timers/promises';
import { GuestFailure } from './guest-errors.ts';

const LOOK_AGAIN_MS = 50;

/**
 * Asks a guest again and again while it refuses because it is frozen, as it is for a moment
 * whenever its sandbox is forked.
 * @throws whatever else the guest answers, or an AbortError
 */
export async function whenThawed(
  request: () => Promise<unknown>,
  signal: AbortSignal,
): Promise<void> {
  for (;;) {
    try {
      await request();
      return;
    } catch (error) {
      if (!(error instanceof GuestFailure) || error.code !== 'frozen') throw error;
      await sleep(LOOK_AGAIN_MS, undefined, { signal });
    }
  }
}
