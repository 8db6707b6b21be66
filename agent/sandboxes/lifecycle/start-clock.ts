import type { MachineOrigin } from '../../machines/driver.ts';

/** The phases of a start in order, from its job to a running sandbox. */
export const startPhases = ['placed', 'queued', 'restored', 'ready'] as const;
/**
 * A phase ends when: `placed`, capacity and network slot are held and journalled; `queued`, the
 * start's turn has come; `restored`, the machine has run its first instruction; `ready`, the guest
 * is ready and the journal says running.
 */
export type StartPhase = (typeof startPhases)[number];

/** The duration of each phase of a start, in milliseconds. */
export type StartTimes = Readonly<Partial<Record<StartPhase, number>>>;

/** Receives the phases of each successful start. */
export type ObserveStart = (kind: MachineOrigin['kind'], times: StartTimes) => void;

/** Measures the phases of one start. */
export class StartClock {
  #at = performance.now();
  #times: StartTimes = {};

  get times(): StartTimes {
    return this.#times;
  }

  /** Ends a phase. @param at when it ended, by `performance.now()` */
  end(phase: StartPhase, at = performance.now()): void {
    this.#times = { ...this.#times, [phase]: Math.round((at - this.#at) * 10) / 10 };
    this.#at = at;
  }
}
