import { SANDBOX_LIMITS } from '../limits.ts';
import type { SandboxRow } from '../../system/journal/sandbox-journal.ts';
import { copyMsMax } from './copy-gate.ts';
import { setDeadline, type StorageAnswers } from './deadline.ts';

/** Watches the deadline of the present transition. */
export class TransitionWatchdog {
  readonly #storage: StorageAnswers;
  readonly #overdue: () => void;
  #lift: (() => void) | undefined;

  /** @param overdue called once for each deadline that passes */
  constructor(storage: StorageAnswers, overdue: () => void) {
    this.#storage = storage;
    this.#overdue = overdue;
  }

  /** Sets the deadline of the state just entered. A start's deadline begins with its turn. */
  watch({ state, config }: Pick<SandboxRow, 'state' | 'config'>): void {
    this.clear();
    if (state === 'pausing')
      this.#lift = setDeadline(copyMsMax(config.memSizeMib), this.#storage, this.#overdue);
    if (state === 'stopping')
      this.#set(SANDBOX_LIMITS.sandboxStopGraceMs + 2 * SANDBOX_LIMITS.sandboxKillMsMax);
  }

  /** Sets the deadline of a start or resume whose turn has come. */
  watchStart(bootTimeoutMs: number): void {
    this.clear();
    this.#set(bootTimeoutMs + SANDBOX_LIMITS.sandboxKillMsMax);
  }

  clear(): void {
    this.#lift?.();
  }

  #set(ms: number): void {
    const timer = setTimeout(this.#overdue, ms);
    timer.unref();
    this.#lift = () => clearTimeout(timer);
  }
}
