import { AppError } from '../../../shared/errors.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { timerMs } from '../../../shared/units.ts';
import { monotonicNow } from '../../system/monotonic-clock.ts';

/**
 * The time limits of a run. Times are milliseconds of the host's monotonic clock: by the wall
 * clock, which can be set, a limit could come early or late.
 */
export interface RunTimes {
  /** When the run has run for as long as it may. */
  readonly expiresAt: number | undefined;
  /** Since when nothing uses the sandbox; undefined while something does. */
  readonly idleSince: number | undefined;
  /** 0: no idle limit. */
  readonly idleTtlSeconds: number;
}

/** When the first limit is reached; infinity when neither is set. */
export function dueAt({ expiresAt, idleSince, idleTtlSeconds }: RunTimes): number {
  const isIdleLimited = idleSince !== undefined && idleTtlSeconds > 0;
  const idleUntil = isIdleLimited ? idleSince + idleTtlSeconds * 1000 : Number.POSITIVE_INFINITY;
  return Math.min(expiresAt ?? Number.POSITIVE_INFINITY, idleUntil);
}

/**
 * When a run expires that may run for `timeoutSeconds` from now. All times are of one clock.
 * @throws AppError `bad_request` when it would last longer than any run may
 */
export function resetExpiry(runningSince: number, timeoutSeconds: number, now: number): number {
  const latest = runningSince + SCHEMA_LIMITS.sandboxTtlSecondsMax * 1000;
  const expiresAt = now + timeoutSeconds * 1000;
  if (expiresAt <= latest) return expiresAt;
  const hours = SCHEMA_LIMITS.sandboxTtlSecondsMax / 3600;
  const left = Math.max(0, Math.floor((latest - now) / 1000));
  const message = `a session lasts ${hours} hours at most: this one can continue for ${left} s`;
  throw new AppError('bad_request', message);
}

/** Watches the time limits of one sandbox and reports when one is reached, never early. */
export class TimeLimits {
  readonly #reached: () => void;
  #times: RunTimes | undefined;
  #notBefore = 0;
  #timer: NodeJS.Timeout | undefined;

  /** @param reached called once for each `watch` or `postpone` */
  constructor(reached: () => void) {
    this.#reached = reached;
  }

  get isReached(): boolean {
    return this.#at <= monotonicNow();
  }

  /** Replaces the watched limits; undefined: watches nothing. */
  watch(times: RunTimes | undefined): void {
    this.#times = times;
    if (times === undefined) this.#notBefore = 0;
    this.#wait();
  }

  /** Reports the limit again after `ms`, because what it asks for has failed. */
  postpone(ms: number): void {
    this.#notBefore = monotonicNow() + ms;
    this.#wait();
  }

  get #at(): number {
    const at = this.#times === undefined ? Number.POSITIVE_INFINITY : dueAt(this.#times);
    return Math.max(at, this.#notBefore);
  }

  #wait(): void {
    clearTimeout(this.#timer);
    const at = this.#at;
    if (at === Number.POSITIVE_INFINITY) return;
    const ms = timerMs(at - monotonicNow());
    this.#timer = setTimeout(() => {
      // The timer may be early, or have been too short for all of the time.
      if (this.isReached) this.#reached();
      else this.#wait();
    }, Math.ceil(ms));
    this.#timer.unref();
  }
}
