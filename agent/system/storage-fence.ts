import { AppError, toError } from '../../shared/errors.ts';
import { SYSTEM_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import { cephVariables } from './environment.ts';
import { run } from './spawn.ts';

/**
 * Shuts hosts out of the shared storage by the operator's program (`STORAGE_FENCE_COMMAND`):
 * whatever they still have open or attached there, they can write nothing any more, not even when
 * they are back.
 */
export class StorageFence {
  readonly #command: string | undefined;
  readonly #log: Logger;
  /** By the host's id: many disks of a host that died are taken over at the same time. */
  readonly #underWay = new Map<string, Promise<void>>();

  /** @param command undefined: no host can be shut out */
  constructor(command: string | undefined, log: Logger) {
    this.#command = command;
    this.#log = log;
  }

  /**
   * Returns once the storage accepts nothing of the host any more. Idempotent.
   * @throws AppError `unavailable` when that is not certain: then nothing of the host may be taken
   *   over
   */
  async shutOut(hostId: string): Promise<void> {
    const pending = this.#underWay.get(hostId) ?? this.#run(hostId);
    this.#underWay.set(hostId, pending);
    try {
      await pending;
    } finally {
      this.#underWay.delete(hostId);
    }
  }

  async #run(hostId: string): Promise<void> {
    if (this.#command === undefined) {
      const message = `host ${hostId} does not answer and may still write; it cannot be fenced`;
      throw new AppError('unavailable', message);
    }
    const begunAt = performance.now();
    try {
      await run(this.#command, [hostId], {
        timeoutMs: SYSTEM_LIMITS.storageFenceMsMax,
        environment: cephVariables,
      });
    } catch (error) {
      this.#log.error({ fencedHostId: hostId, err: toError(error) }, 'storage:fenceFailed');
      const message = `host ${hostId} may still write and could not be fenced; try again`;
      throw new AppError('unavailable', message, { cause: error });
    }
    const durationMs = Math.round(performance.now() - begunAt);
    this.#log.warn({ fencedHostId: hostId, durationMs }, 'storage:hostFenced');
  }
}
