import { type GuestProcessRecord, PROCESS_FLAGS } from './guest-protocol.ts';
import type { GuestExit } from './guest-types.ts';

/** How a process ended. */
export type ProcessEnd = Omit<GuestExit, 'processId'>;

/** How a process ended, of a record or an `exited` frame. */
export function endOfProcess({
  flags,
  status,
  end,
  endedAt,
}: Pick<GuestProcessRecord, 'flags' | 'status' | 'end' | 'endedAt'>): ProcessEnd {
  const has = (flag: number): boolean => (flags & flag) !== 0;
  const isSignal = has(PROCESS_FLAGS.signalled);
  return {
    exitCode: isSignal ? undefined : status,
    signal: isSignal ? status : undefined,
    // A process that was killed when its time was up ran out of time.
    cause: has(PROCESS_FLAGS.timedOut)
      ? 'timed_out'
      : has(PROCESS_FLAGS.killed)
        ? 'killed'
        : undefined,
    end,
    endedAt,
  };
}
