/*
 * Time that only a test moves: timers, `Date`, `performance` and the host's monotonic clock for the
 * whole process, libraries included (decision 0029). What does not wait for a timer goes on as
 * ever.
 */
import { syncBuiltinESMExports } from 'node:module';
import FakeTimers, { type Clock } from '@sinonjs/fake-timers';

const immediate = globalThis.setImmediate;
const monotonicClock = process.hrtime.bigint.bind(process.hrtime);

/** The host is up for so long already. */
const HOST_UP_MS = 100_000_000;

const nextTurn = (): Promise<void> =>
  new Promise((resolve) => {
    immediate(resolve);
  });

const isFileCall = (name: string): boolean =>
  name.startsWith('FSReq') || name.startsWith('FileHandle');
const hasFileCalls = (): boolean => process.getActiveResourcesInfo().some(isFileCall);

/** At so many turns of the event loop without anything to wait for, nothing happens by itself. */
const CALM_TURNS = 3;

export class FakeTime implements Disposable {
  readonly #clock: Clock;
  #calls = 0;
  #lastAnswer: Promise<void> = Promise.resolve();
  /** The monotonic clock when `performance` was last set to 0. */
  #beganMs = HOST_UP_MS;

  constructor(now = Date.UTC(2026, 0, 1)) {
    this.#clock = FakeTimers.install({
      now,
      toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date', 'performance'],
    });
    process.hrtime.bigint = () => BigInt(Math.round(this.monotonicMs * 1e6));
    syncBuiltinESMExports(); // For `import { setTimeout } from 'node:timers/promises'`.
  }

  /**
   * The host's monotonic clock: nothing sets it, not even another process in the place of this one.
   */
  get monotonicMs(): number {
    return this.#beganMs + performance.now();
  }

  /**
   * Something outside of this process, which has to answer before anything can be said to rest.
   * Answers come in the order of the calls, each after everything that followed from the one
   * before.
   * @param abandoned settles when nobody waits for the answer any more: it may never come
   */
  async wait<T>(call: Promise<T>, abandoned?: Promise<void>): Promise<T> {
    const answered = call.then(
      () => undefined,
      () => undefined,
    );
    this.#calls += 1;
    const over = Promise.race(abandoned === undefined ? [answered] : [answered, abandoned]);
    const isTurn = this.#lastAnswer.then(async () => {
      await over;
      do await nextTurn();
      while (hasFileCalls());
    });
    this.#lastAnswer = isTurn;
    await isTurn;
    this.#calls -= 1;
    return call;
  }

  /** Until nothing happens any more without time passing. */
  async settle(): Promise<void> {
    for (let calm = 0; calm < CALM_TURNS;) {
      await nextTurn();
      calm = this.#calls > 0 || hasFileCalls() ? 0 : calm + 1;
    }
  }

  /** Until it is so, without time passing. @throws Error after ten seconds of the real time */
  async until(what: string, isSo: () => boolean): Promise<void> {
    for (const begunAt = process.uptime(); !isSo();) {
      if (process.uptime() > begunAt + 10) throw new Error(`waited in vain for ${what}`);
      await nextTurn();
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

  /**
   * Another process is in the place of this one: timers are gone, and `performance` begins anew.
   */
  forgetTimers(): void {
    const { now } = this.#clock;
    this.#beganMs = this.monotonicMs;
    this.#clock.reset();
    this.#clock.setSystemTime(now);
  }

  [Symbol.dispose](): void {
    this.#clock.uninstall();
    process.hrtime.bigint = monotonicClock;
    syncBuiltinESMExports();
  }
}
