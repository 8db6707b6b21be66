import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SandboxRow } from '../../system/journal/sandbox-journal.ts';
import type { SandboxPolicies } from '../holds/sandbox-policies.ts';

interface PauseDrainDeps {
  readonly policies: SandboxPolicies;
  readonly log: Logger;
}

/**
 * The wait of one sandbox's pause for the requests that its policy names in `drain_on_pause`,
 * `networkDrainMsMax` at most.
 */
export class PauseDrain {
  readonly #deps: PauseDrainDeps;
  #present: AbortController | undefined;
  #isAsked = false;

  constructor(deps: PauseDrainDeps) {
    this.#deps = deps;
  }

  /** Whether a caller asked for the pause; else a time limit did. */
  get isAsked(): boolean {
    return this.#isAsked;
  }

  /** A caller asks for the pause that waits. */
  ask(): void {
    this.#isAsked = true;
  }

  /** @param over called when the requests are over or the time is up, unless it was cancelled */
  begin(row: SandboxRow, isAsked: boolean, over: (cancelled: AbortSignal) => Promise<void>): void {
    this.cancel();
    const cancel = new AbortController();
    this.#present = cancel;
    this.#isAsked = isAsked;
    runInBackground('sandbox.drain', async () => {
      await this.#wait(row, cancel.signal);
      if (!cancel.signal.aborted) await over(cancel.signal);
    });
  }

  /** The sandbox is not paused, no longer runs, or its agent ends. */
  cancel(): void {
    this.#present?.abort();
    this.#present = undefined;
  }

  /** Resolves when the requests are over, when they cannot be watched, or when the time is up. */
  async #wait(row: SandboxRow, cancelled: AbortSignal): Promise<void> {
    const { policies, log } = this.#deps;
    const signal = AbortSignal.any([
      cancelled,
      AbortSignal.timeout(SANDBOX_LIMITS.networkDrainMsMax),
    ]);
    const aborted = new Promise<never>((_resolve, reject) => {
      signal.addEventListener('abort', () => reject(toError(signal.reason)), { once: true });
    });
    try {
      await Promise.race([policies.drained(row, signal), aborted]);
    } catch (error) {
      if (cancelled.aborted) return;
      log.warn({ sandboxId: row.id, err: toError(error) }, 'sandbox:drainIncomplete');
    }
  }
}
