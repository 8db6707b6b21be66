import { toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';

/** How long a pause or a fork of a machine with that much memory may take. */
export const copyMsMax = (memSizeMib: number): number =>
  LIMITS.sandboxCopyMsBase + memSizeMib * LIMITS.sandboxCopyMsPerMib;

/** Tells whether the machine or the disk of a sandbox is being copied; actions wait until it is not. */
export class CopyGate {
  #copying: Promise<unknown> | undefined;

  /** Settles, and never rejects, when the copy that is being made is done; undefined without one. */
  get copying(): Promise<unknown> | undefined {
    return this.#copying;
  }

  /** Closes the gate until a copy is made. @param overdue called once when it takes longer */
  hold(copying: Promise<unknown>, msMax: number, overdue: () => void): void {
    const timer = setTimeout(overdue, msMax);
    timer.unref();
    this.#copying = copying.catch(toError).finally(() => {
      clearTimeout(timer);
      this.#copying = undefined;
    });
  }
}
