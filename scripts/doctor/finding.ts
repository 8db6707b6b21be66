/** A check's result. */
export interface Finding {
  /** Names the check: stable, for programs. */
  readonly check: string;
  /**
   * `failed`: Berth does not work here. `warning`: it works, but not all of it, or not as well as
   * it could.
   */
  readonly level: 'ok' | 'warning' | 'failed';
  readonly message: string;
  /** The next step for the operator. */
  readonly next?: string;
}

/** Checks one thing, or several of a kind. */
export type Check = () => Promise<readonly Finding[]>;

export const ok = (check: string, message: string): Finding => ({ check, level: 'ok', message });

export const warning = (check: string, message: string, next: string): Finding => ({
  check,
  level: 'warning',
  message,
  next,
});

export const failed = (check: string, message: string, next: string): Finding => ({
  check,
  level: 'failed',
  message,
  next,
});
