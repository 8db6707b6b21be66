import { runInBackground } from '../../../shared/background.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import { SYSTEM_LIMITS } from '../../system/limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SnapshotRecord } from '../../../shared/schemas/snapshot-record.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { SnapshotJournal, SnapshotRow } from '../../system/journal/snapshot-journal.ts';
import { repeatUntilDone } from '../../system/queues/until-done.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { MachineDriver, MachineOwner } from '../../machines/driver.ts';
import type { Publisher } from '../lifecycle/publisher.ts';
import type { StartState } from '../lifecycle/sandbox-start.ts';

export interface SnapshotDeps extends Pick<SnapshotRecord, 'hostId' | 'platform'> {
  readonly journal: SnapshotJournal;
  readonly driver: MachineDriver;
  readonly publisher: Publisher<SnapshotRecord>;
  readonly log: Logger;
}

/** Converts a journal row into the record that the host publishes. */
function toRecord(
  row: SnapshotRow,
  { hostId, platform }: Pick<SnapshotRecord, 'hostId' | 'platform'>,
): SnapshotRecord {
  const { id, accountId, name, sandboxId, config, state, hasMemory, sizeBytes } = row;
  const { rootDiskId, network, createdAt, failureReason, revision } = row;
  const status = state === 'deleting' ? 'failed' : state; // A deleted one is not published.
  return {
    ...{ id, accountId, hostId, name, sandboxId, config, status, hasMemory, sizeBytes },
    ...{ rootDiskId, platform, network, createdAt },
    ...(failureReason === undefined ? {} : { failureReason }),
    revision,
  };
}

/**
 * A snapshot of a sandbox: a copy of its disk, and of its memory if it had one, that never runs and
 * never changes. Its journal row is the truth: it is written before the copy is begun, and a copy
 * whose row does not say `ready` when an agent starts is removed.
 */
export class Snapshot {
  readonly #deps: SnapshotDeps;
  #row: SnapshotRow;
  #isDeleting: boolean;
  /** Until then it may still be refused, and nobody may see it. */
  #isJournalled = false;
  #made: Promise<void> = Promise.resolve();
  readonly #removed = Promise.withResolvers<void>();
  readonly #detached = new AbortController();

  constructor(deps: SnapshotDeps, row: SnapshotRow) {
    this.#deps = deps;
    this.#row = row;
    this.#isDeleting = row.state === 'deleting';
  }

  get row(): SnapshotRow {
    return this.#row;
  }

  /** The snapshot as it is published. */
  get record(): SnapshotRecord {
    return toRecord(this.#row, this.#deps);
  }

  /** Whether it exists: until then it may still be refused. */
  get isJournalled(): boolean {
    return this.#isJournalled;
  }

  /** Whether its deletion has begun; parts of it may still exist. */
  get isDeleting(): boolean {
    return this.#isDeleting;
  }

  /** Whether it holds, or may come to hold, layers of the sandbox that it was made of. */
  get holdsLayers(): boolean {
    return !this.#isDeleting && this.#row.state !== 'failed';
  }

  /** Resolves when nothing of it is left, its row included. */
  get removed(): Promise<void> {
    return this.#removed.promise;
  }

  /** Journals a new snapshot, before anything of it is made. */
  async insert(found: Partial<SnapshotRow>): Promise<void> {
    const row = { ...this.#row, ...found };
    await failpoint('journal snapshot', () => this.#deps.journal.insert(row));
    this.#row = row;
    this.#isJournalled = true;
  }

  /**
   * Makes the snapshot, and journals the outcome of the copy when that is known.
   * @param begin journals it and begins the copy, or refuses it
   * @returns resolves when the copy has begun
   * @throws what `begin` throws
   */
  async make(begin: () => Promise<{ readonly copied: Promise<StartState> }>): Promise<void> {
    const begun = begin();
    this.#made = begun.then(
      ({ copied }) => this.#complete(copied),
      () => undefined,
    );
    await begun;
  }

  /** Publishes a new snapshot; resolves when the directory shows it. */
  async publishNew(): Promise<void> {
    await this.#deps.publisher.publishNew(this.record);
  }

  /** Publishes the snapshot, unless it is being deleted or was not journalled yet. */
  async publish(): Promise<void> {
    if (!this.#isJournalled || this.#isDeleting || this.#detached.signal.aborted) return;
    await this.#deps.publisher.publish(this.record);
  }

  /** Resolves when the copy is complete or has failed, or was refused; never rejects. */
  get made(): Promise<void> {
    return this.#made;
  }

  /** Like {@link made}, but after `waitMs` at the latest. */
  async settled(waitMs: number): Promise<void> {
    await settledWithin(this.#made, waitMs);
  }

  /** Copies disk and memory for a new sandbox. @returns the state in which the sandbox starts */
  async copyTo(child: MachineOwner): Promise<StartState> {
    const { driver } = this.#deps;
    const { id, hasMemory } = this.#row;
    await failpoint('copy snapshot', () => driver.fork(id, child));
    if (!hasMemory) return 'pending_start';
    if (await driver.hasCheckpoint(child.vmId)) return 'pending_resume';
    throw new AppError('internal_server_error', 'the memory of the snapshot is missing');
  }

  /**
   * Takes over a snapshot that a former agent journalled. Resolves, after a while, also when the
   * journal cannot be written: it is tried again.
   */
  async recover(): Promise<void> {
    this.#isJournalled = true;
    if (this.#isDeleting) return this.#removeUntilGone();
    if (this.#row.state !== 'creating') return this.publish();
    const failed = this.#failAtLast('the agent of the host ended while the snapshot was made');
    this.#made = failed.then(() => this.publish());
    await this.settled(SYSTEM_LIMITS.startStepMsMax);
  }

  /**
   * Journals the intent to delete the snapshot and removes it; if that fails, retries in the
   * background.
   * @throws Error when the intent could not be journalled; nothing has changed then
   */
  async remove(): Promise<void> {
    this.#isDeleting = true; // At once: nothing may be created from it from now on.
    try {
      await this.#enter('deleting', {});
    } catch (error) {
      this.#isDeleting = false;
      throw error;
    }
    await this.#removeUntilGone();
  }

  /** Stops publishing and retrying; the next agent continues. */
  async detach(): Promise<void> {
    this.#detached.abort();
    await settledWithin(this.#made, SANDBOX_LIMITS.sandboxDetachMs);
  }

  async #complete(copied: Promise<StartState>): Promise<void> {
    const { driver, log } = this.#deps;
    const { id } = this.#row;
    try {
      const hasMemory = (await copied) === 'pending_resume';
      await this.#enter('ready', { hasMemory, sizeBytes: await driver.storedBytes(id) });
    } catch (error) {
      log.warn({ snapshotId: id, err: toError(error) }, 'snapshot:createFailed');
      await this.#failAtLast(toError(error).message);
    }
    await this.publish();
  }

  /**
   * Repeats it while the journal cannot be written: until then the snapshot can not even be
   * deleted.
   */
  async #failAtLast(reason: string): Promise<void> {
    const attempt = async (): Promise<boolean> => {
      try {
        await this.#fail(reason);
        return true;
      } catch (error) {
        const { id: snapshotId } = this.#row;
        this.#deps.log.error({ snapshotId, err: toError(error) }, 'snapshot:journalFailed');
        return false;
      }
    };
    if (!(await attempt())) await repeatUntilDone(attempt, this.#detached.signal);
  }

  /** Journals the failure and removes what was made; a later agent would remove it, too. */
  async #fail(reason: string): Promise<void> {
    const failureReason = reason.slice(0, SCHEMA_LIMITS.sandboxExitMessageLengthMax);
    await this.#enter('failed', { failureReason });
    await this.#untilDone('snapshot.removeFailed', () => this.#removeFiles());
  }

  async #enter(state: SnapshotRow['state'], change: Partial<SnapshotRow>): Promise<void> {
    const row = { ...this.#row, ...change, state, revision: this.#row.revision + 1 };
    await failpoint(`journal snapshot ${state}`, () => this.#deps.journal.save(row));
    this.#row = row;
    const { id: snapshotId, accountId, sandboxId, failureReason } = row;
    const event = { snapshotId, accountId, sandboxId, state, failureReason };
    this.#deps.log.info(event, 'snapshot:transitioned');
  }

  /** Callers stop seeing it first; its row goes last, so that a crash leaves a record. */
  #removeUntilGone(): Promise<void> {
    const { journal, publisher } = this.#deps;
    return this.#untilDone('snapshot.delete', async () => {
      await publisher.remove(this.record);
      await this.#removeFiles();
      await failpoint('journal snapshot deleted', () => journal.remove(this.#row.id));
      this.#removed.resolve();
    });
  }

  async #removeFiles(): Promise<void> {
    const { driver } = this.#deps;
    const { id } = this.#row;
    await driver.reclaim(id);
    await failpoint('remove snapshot', () => driver.remove(id));
  }

  /** Resolves after the first attempt; retries a failed one in the background. */
  async #untilDone(name: string, work: () => Promise<void>): Promise<void> {
    const { log } = this.#deps;
    const attempt = async (): Promise<boolean> => {
      try {
        await work();
        return true;
      } catch (error) {
        const { id: snapshotId } = this.#row;
        log.error({ snapshotId, err: toError(error) }, 'snapshot:removeFailed');
        return false;
      }
    };
    if (await attempt()) return;
    runInBackground(name, () => repeatUntilDone(attempt, this.#detached.signal));
  }
}
