import type { MachineOrigin } from './machine-driver.ts';

/** One after the other: what a start goes through from its job to a sandbox that runs. */
export const startPhases = ['placed', 'queued', 'restored', 'ready'] as const;
/**
 * `placed`: room and network slot are held, the journal has it. `queued`: it was its turn among those
 * that come up. `restored`: its machine ran its first instruction. `ready`: its guest is, and the
 * journal has that.
 */
export type StartPhase = (typeof startPhases)[number];

/** Where the time of a start went, in milliseconds. */
export type StartTimes = Readonly<Partial<Record<StartPhase, number>>>;

/** Told of each start that came to its end. */
export type ObserveStart = (kind: MachineOrigin['kind'], times: StartTimes) => void;

/** Measures one start. */
export class StartClock {
  #at = performance.now();
  #times: StartTimes = {};

  get times(): StartTimes {
    return this.#times;
  }

  /** @param at when the phase was over, by `performance.now()` */
  end(phase: StartPhase, at = performance.now()): void {
    this.#times = { ...this.#times, [phase]: Math.round((at - this.#at) * 10) / 10 };
    this.#at = at;
  }
}
