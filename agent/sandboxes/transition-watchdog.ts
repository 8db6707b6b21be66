import { LIMITS } from '../../shared/limits.ts';
import type { SandboxRow } from '../journal/sandbox-journal.ts';
import { copyMsMax } from './copy-gate.ts';

/** Watches the deadline of the present transition. */
export class TransitionWatchdog {
  readonly #overdue: () => void;
  #timer: NodeJS.Timeout | undefined;

  /** @param overdue called once for each deadline that passes */
  constructor(overdue: () => void) {
    this.#overdue = overdue;
  }

  /** Sets the deadline of the state just entered. A start's deadline begins with its turn. */
  watch({ state, config }: Pick<SandboxRow, 'state' | 'config'>): void {
    this.clear();
    if (state === 'pausing') this.#set(copyMsMax(config.memSizeMib));
    if (state === 'stopping') this.#set(LIMITS.sandboxStopGraceMs + 2 * LIMITS.sandboxKillMsMax);
  }

  /** Sets the deadline of a start or resume whose turn has come. */
  watchStart(bootTimeoutMs: number): void {
    this.clear();
    this.#set(bootTimeoutMs + LIMITS.sandboxKillMsMax);
  }

  clear(): void {
    clearTimeout(this.#timer);
  }

  #set(ms: number): void {
    this.#timer = setTimeout(this.#overdue, ms);
    this.#timer.unref();
  }
}
