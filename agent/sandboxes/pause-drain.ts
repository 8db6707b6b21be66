import { setTimeout as sleep } from 'node:timers/promises';
import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { Logger } from '../../shared/log.ts';
import type { SandboxRow } from '../journal/sandbox-journal.ts';
import type { SandboxPolicies } from './sandbox-policies.ts';

interface PauseDrainDeps {
  readonly policies: SandboxPolicies;
  readonly log: Logger;
  /** The pause has failed, maybe after its callers have waited for long enough. */
  readonly failed: () => void;
}

/** A wait under way. */
interface Drain {
  /** Each begins the pause, or decides against it; in the order in which they came. */
  readonly pauses: (() => Promise<void>)[];
  readonly paused: Promise<void>;
  readonly cancel: AbortController;
}

/**
 * Has pauses of one sandbox wait for the requests that its policy names in `drain_on_pause`. It
 * stays `running` meanwhile, and is paused in any case when the longest wait is over.
 */
export class PauseDrain {
  readonly #deps: PauseDrainDeps;
  #present: Drain | undefined;

  constructor(deps: PauseDrainDeps) {
    this.#deps = deps;
  }

  /**
   * Pauses once no such request is under way.
   * @param pause begins the pause, or decides that there is to be none; not called when the sandbox
   *   stops running before
   * @returns resolves when the pause has begun, or when callers have waited for that long enough
   * @throws what `pause` throws until then
   */
  async pause(row: SandboxRow, pause: () => Promise<void>): Promise<void> {
    const patterns = row.network.egress?.drain_on_pause ?? [];
    if (row.state !== 'running' || patterns.length === 0) return pause();
    this.#present ??= this.#begin(row);
    this.#present.pauses.push(pause);
    const held = new AbortController();
    const long = sleep(LIMITS.networkDrainHeldMsMax, undefined, { signal: held.signal });
    try {
      await Promise.race([this.#present.paused, long]);
    } finally {
      held.abort();
      long.catch(() => undefined);
    }
  }

  /** The sandbox does not run any more, or its agent ends. */
  cancel(): void {
    this.#present?.cancel.abort();
    this.#present = undefined;
  }

  #begin(row: SandboxRow): Drain {
    const cancel = new AbortController();
    const pauses: Drain['pauses'] = [];
    const paused = this.#drainAndPause(row, { pauses, cancel });
    runInBackground('sandbox.drain', async () => {
      await paused.catch((error: unknown) => {
        this.#deps.log.warn({ sandboxId: row.id, err: toError(error) }, 'sandbox:drainFailed');
        this.#deps.failed();
      });
    });
    return { pauses, paused, cancel };
  }

  async #drainAndPause(
    row: SandboxRow,
    { pauses, cancel }: Pick<Drain, 'pauses' | 'cancel'>,
  ): Promise<void> {
    const { policies, log } = this.#deps;
    const cancelled = cancel.signal;
    const signal = AbortSignal.any([cancelled, AbortSignal.timeout(LIMITS.networkDrainMsMax)]);
    try {
      await policies.drained(row, signal);
    } catch (error) {
      if (!cancelled.aborted) {
        log.warn({ sandboxId: row.id, err: toError(error) }, 'sandbox:drainIncomplete');
      }
    }
    try {
      // A time limit's may decide against it, and others come meanwhile.
      for (const pause of pauses) if (!cancelled.aborted) await pause();
    } finally {
      if (this.#present?.cancel === cancel) this.#present = undefined;
    }
  }
}
