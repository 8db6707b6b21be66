import { toError } from '../../../shared/errors.ts';
import { MACHINE_LIMITS } from '../../machines/limits.ts';
import { setDeadline, type StorageAnswers } from './deadline.ts';

/** How long a pause or fork of a machine with this much memory may take, in milliseconds. */
export const copyMsMax = (memSizeMib: number): number =>
  MACHINE_LIMITS.sandboxCopyMsBase + memSizeMib * MACHINE_LIMITS.sandboxCopyMsPerMib;

/**
 * Tracks whether a sandbox's machine or disk is being copied. Actions wait until the copy is done.
 */
export class CopyGate {
  readonly #storage: StorageAnswers;
  #copying: Promise<unknown> | undefined;

  constructor(storage: StorageAnswers) {
    this.#storage = storage;
  }

  /** Resolves when the present copy is done or has failed; undefined when nothing is copied. */
  get copying(): Promise<unknown> | undefined {
    return this.#copying;
  }

  /**
   * Closes the gate until `copying` settles.
   * @param overdue called once if that takes longer than `msMax`
   * @returns a function that lifts the deadline once the machine runs on; the gate stays closed
   */
  hold(copying: Promise<unknown>, msMax: number, overdue: () => void): () => void {
    const lift = setDeadline(msMax, this.#storage, overdue);
    this.#copying = copying.catch(toError).finally(() => {
      lift();
      this.#copying = undefined;
    });
    return lift;
  }
}
