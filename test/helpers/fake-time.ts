/*
 * Time that only a test moves: timers, `Date` and `performance` of the whole process, libraries
 * included (decision 0031). What does not wait for a timer goes on as ever.
 */
import { syncBuiltinESMExports } from 'node:module';
import FakeTimers, { type Clock } from '@sinonjs/fake-timers';

const immediate = globalThis.setImmediate;

const isFileCall = (name: string): boolean =>
  name.startsWith('FSReq') || name.startsWith('FileHandle');

/** At so many turns of the event loop without anything to wait for, nothing happens by itself. */
const CALM_TURNS = 3;

export class FakeTime implements Disposable {
  readonly #clock: Clock;
  #calls = 0;

  constructor(now = Date.UTC(2026, 0, 1)) {
    this.#clock = FakeTimers.install({
      now,
      toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date', 'performance'],
    });
    syncBuiltinESMExports(); // For `import { setTimeout } from 'node:timers/promises'`.
  }

  /**
   * Something outside of this process, which has to answer before anything can be said to rest.
   * @param abandoned settles when nobody waits for the answer any more: it may never come
   */
  async wait<T>(call: Promise<T>, abandoned?: Promise<void>): Promise<T> {
    const answered = call.then(
      () => undefined,
      () => undefined,
    );
    this.#calls += 1;
    Promise.race(abandoned === undefined ? [answered] : [answered, abandoned]).then(
      () => (this.#calls -= 1),
      () => undefined,
    );
    return call;
  }

  /** Until nothing happens any more without time passing. */
  async settle(): Promise<void> {
    for (let calm = 0; calm < CALM_TURNS;) {
      await new Promise((resolve) => {
        immediate(resolve);
      });
      const isBusy = this.#calls > 0 || process.getActiveResourcesInfo().some(isFileCall);
      calm = isBusy ? 0 : calm + 1;
    }
  }

  /** Time passes; what is due happens, and what follows from it, before more of it passes. */
  async pass(ms: number, stepMs = 1_000): Promise<void> {
    for (let left = ms; left > 0; left -= stepMs) {
      this.#clock.tick(Math.min(left, stepMs));
      await this.settle();
    }
  }

  /** The clock of the host is set, forwards or back; no timer notices. */
  setWallClock(now: number): void {
    this.#clock.setSystemTime(now);
  }

  /** Whoever waited for a timer is not there any more. */
  forgetTimers(): void {
    const { now } = this.#clock;
    this.#clock.reset();
    this.#clock.setSystemTime(now);
  }

  [Symbol.dispose](): void {
    this.#clock.uninstall();
    syncBuiltinESMExports();
  }
}
