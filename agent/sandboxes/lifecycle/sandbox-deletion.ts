import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import { repeatUntilDone } from '../../system/queues/until-done.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { SandboxContext } from './sandbox-context.ts';
import { pauseIsOver } from './sandbox-pause.ts';

/**
 * The deletion of one sandbox. Once its intent is journalled it cannot be undone: failures are
 * retried by this agent, and by the next one, until nothing of the sandbox is left.
 */
export class SandboxDeletion {
  readonly #context: SandboxContext;
  readonly #closed = new AbortController();
  readonly #done = Promise.withResolvers<void>();

  constructor(context: SandboxContext) {
    this.#context = context;
  }

  /** Resolves when nothing of the sandbox is left, its row in the journal included. */
  get done(): Promise<void> {
    return this.#done.promise;
  }

  /**
   * Journals the intent and tries to remove the sandbox; if that fails, retries in the background.
   * @throws Error when the intent could not be journalled; nothing has changed then
   */
  async begin(): Promise<void> {
    await this.#context.sandbox.beginDelete();
    await this.resume();
  }

  /** Like {@link begin}, for an intent that a former agent journalled. */
  async resume(): Promise<void> {
    this.#context.watchdog.clear();
    if (await this.#attempt()) return;
    const again = (): Promise<boolean> => this.#attempt();
    runInBackground('sandbox.delete', () => repeatUntilDone(again, this.#closed.signal));
  }

  /** Stops retrying; the next agent continues. */
  close(): void {
    this.#closed.abort();
  }

  /** @returns whether the sandbox is removed */
  async #attempt(): Promise<boolean> {
    const { id: sandboxId } = this.#context.sandbox.row;
    const { log } = this.#context.deps;
    try {
      await this.#remove();
    } catch (error) {
      log.error({ sandboxId, err: toError(error) }, 'sandbox:deleteFailed');
      return false;
    }
    log.info({ sandboxId }, 'sandbox:deleted');
    this.#done.resolve();
    return true;
  }

  /**
   * Idempotent. Callers stop seeing it first; its row goes last, so that a crash leaves a record.
   */
  async #remove(): Promise<void> {
    const { sandbox, current, execs, processes, imageWait, deps } = this.#context;
    const { journal, driver, slots, capacity } = deps;
    const { id, vmId, slot } = sandbox.row;
    imageWait.cancel();
    await current.leave('the sandbox is deleted'); // Its machine runs until it is reclaimed.
    await execs.loseAll('failed', 'the sandbox was deleted');
    processes.loseAll('cancelled', 'the sandbox was deleted');
    await sandbox.withdraw();
    await failpoint('reclaim machine', () => driver.reclaim(vmId));
    capacity.release(id);
    await pauseIsOver(current);
    await execs.removeAll();
    await failpoint('remove disk', () => driver.remove(vmId));
    await deps.mounts.retain(id, []);
    await failpoint('journal deleted', () => journal.remove(id));
    if (slot !== undefined) runInBackground('slot.release', () => slots.release(slot));
  }
}
