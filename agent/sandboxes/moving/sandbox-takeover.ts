import type { DiskLeases } from '../../../shared/directory/disk-leases.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import { isAtRest } from '../../../shared/sandbox-lifecycle.ts';
import type { SandboxJournal, SandboxRow } from '../../system/journal/sandbox-journal.ts';
import { failpoint } from '../../system/failpoint.ts';
import { renewFiles } from '../../system/renew-files.ts';
import type { MachineDriver } from '../../machines/driver.ts';
import type { HandoverRecord } from './handover-record.ts';
import { FailedAttempts } from './failed-attempts.ts';
import type { HandoverStore } from './handover-store.ts';
import { takenOverRow, wasLostRunning } from './taken-over-row.ts';
import type { SandboxActor } from '../lifecycle/sandbox-actor.ts';
import type { HostedSandboxes } from '../lifecycle/hosted-sandboxes.ts';
import type { UidPool } from '../holds/uid-pool.ts';

export interface SandboxTakeoverDeps {
  readonly hostId: string;
  readonly handover: HandoverStore;
  readonly registry: HostedSandboxes;
  readonly driver: MachineDriver;
  readonly journal: SandboxJournal;
  readonly uids: UidPool;
  readonly diskLeases: Pick<DiskLeases, 'breakHold'>;
  readonly log: Logger;
}

/** Over a quarter of an hour, so that a lease on a disk lapses, or room is made, meanwhile. */
const STARTS = { pauses: { min: 1_000, max: 60_000 }, max: 20 } as const;
/** Within about a minute: after that another host may have more luck. */
const TAKEOVERS = { pauses: { min: 1_000, max: 30_000 }, max: 7 } as const;
/** How long this host leaves alone a machine that it could not take over. */
const LEFT_ALONE_MS = 600_000;

/** Takes sandboxes over from other hosts. */
export class SandboxTakeover {
  readonly #deps: SandboxTakeoverDeps;
  /** By VM id: they lie in this host's directory, and its journal has them not. */
  readonly #takeovers = new FailedAttempts(TAKEOVERS.pauses, TAKEOVERS.max);
  /** By id of the sandbox. */
  readonly #starts = new FailedAttempts(STARTS.pauses, STARTS.max);
  /**
   * Until when a machine whose takeover failed is left alone, by VM id and `performance.now()`.
   */
  readonly #leftAlone = new Map<string, number>();

  constructor(deps: SandboxTakeoverDeps) {
    this.#deps = deps;
  }

  /**
   * Continues every takeover that a previous agent of this host began.
   * @param owned the machines of sandboxes and snapshots that the journal has
   */
  async continueTakeovers(owned: ReadonlySet<string>): Promise<void> {
    const { handover, registry } = this.#deps;
    for (const actor of registry.actors.filter(({ isPlaced }) => isPlaced)) {
      await handover.finishTakeover(actor.row);
      await this.#startIfLost(actor);
    }
    for (const vmId of await handover.storage.list()) {
      if (!owned.has(vmId)) await this.takeOver(vmId);
    }
    for (const id of await handover.released()) registry.noteMoved(id);
  }

  /**
   * How many sandboxes wait for another attempt: to take them over, or to start them after a loss.
   */
  get failing(): { readonly adopt: number; readonly start: number } {
    return { adopt: this.#takeovers.size, start: this.#starts.size };
  }

  /**
   * Whether this host has failed to take over a machine, and leaves it to others for a while.
   */
  leavesAlone(vmId: string): boolean {
    const until = this.#leftAlone.get(vmId) ?? 0;
    if (until < performance.now()) this.#leftAlone.delete(vmId);
    return this.#leftAlone.has(vmId);
  }

  /** Repeats what has failed, once that is due. */
  async repeatFailed(): Promise<void> {
    const { handover, registry } = this.#deps;
    for (const vmId of this.#takeovers.due) {
      if (await handover.storage.has(vmId)) await this.takeOver(vmId);
      else this.#takeovers.forget(vmId);
    }
    for (const id of this.#starts.due) {
      const actor = registry.actors.find((each) => each.id === id);
      if (actor?.isPlaced === true && wasLostRunning(actor.row)) await this.#startLost(actor);
      else this.#starts.forget(id);
    }
  }

  /**
   * Takes over a sandbox that another host had and whose machine's directory is here by now. May be
   * repeated after a crash. A failure is repeated some times; then the machine is released to
   * others.
   * @returns false when what lies there is none, or cannot be read
   */
  async takeOver(vmId: string): Promise<boolean> {
    const { registry, log } = this.#deps;
    let actor: SandboxActor | undefined;
    try {
      actor = await this.#insert(vmId);
    } catch (error) {
      const isRepeated = this.#takeovers.add(vmId);
      log.error({ vmId, isRepeated, err: toError(error) }, 'sandbox:adoptFailed');
      if (!isRepeated) await this.#releaseFailed(vmId);
      return false;
    }
    this.#takeovers.forget(vmId);
    if (actor === undefined) {
      log.error({ vmId }, 'sandbox:notAdopted');
      return false;
    }
    await actor.recover();
    registry.noteReturned(actor.id);
    await actor.republish();
    await this.#startIfLost(actor);
    return true;
  }

  /** Makes the sandbox this host's. @returns undefined when it is none that this host lacks */
  async #insert(vmId: string): Promise<SandboxActor | undefined> {
    const { handover, registry, driver, journal, uids, log } = this.#deps;
    const record = await handover.read(handover.storage.directoryOf(vmId), vmId);
    if (record === undefined || registry.has(record.row.id)) return undefined;
    await handover.readExecs(record.row); // Not taken yet while they cannot be read.
    const uid = uids.take();
    let row: SandboxRow;
    try {
      await driver.receive?.({ vmId, uid });
      if (!isAtRest(record.row.state)) {
        const { directory } = handover.outputOf({ vmId });
        await failpoint('renew output', () => renewFiles(directory));
        await this.#freeDisks(record);
      }
      row = takenOverRow(record.row, { uid, hasCheckpoint: await driver.hasCheckpoint(vmId) });
      await failpoint('journal taken', () => journal.insert(row));
    } catch (error) {
      uids.release(uid);
      throw error;
    }
    registry.noteMoved(row.id); // Nobody finds it here before it is recovered.
    const actor = registry.add(row);
    log.info({ sandboxId: row.id, vmId, from: record.hostId, state: row.state }, 'sandbox:moved');
    await handover.finishTakeover(row);
    await registry.holdImage(row);
    return actor;
  }

  /**
   * Frees the disks that the lost host holds for the sandbox, whose machine runs no more. A host
   * that has one attached all the same is shut out of the storage before this one mounts it.
   */
  async #freeDisks({ hostId, row }: HandoverRecord): Promise<void> {
    const { diskLeases, log } = this.#deps;
    for (const { diskId } of row.config.mounts ?? []) {
      const disk = { accountId: row.accountId, diskId };
      if (!(await failpoint('break hold', () => diskLeases.breakHold(disk, hostId)))) continue;
      log.warn({ sandboxId: row.id, diskId, lostHostId: hostId }, 'disk:holdBroken');
    }
  }

  /**
   * Releases every machine that this host has taken and could not continue: it is to be empty.
   * @param isWanted asked before each: once it answers false, nothing further is released
   */
  async releaseAllFailed(isWanted: () => boolean): Promise<void> {
    for (const vmId of this.#takeovers.ids) {
      if (!isWanted()) return;
      await this.#releaseFailed(vmId);
    }
  }

  async #releaseFailed(vmId: string): Promise<void> {
    const { handover, log } = this.#deps;
    this.#leftAlone.set(vmId, performance.now() + LEFT_ALONE_MS);
    try {
      if (await handover.storage.release(vmId)) {
        this.#takeovers.forget(vmId);
        return log.warn({ vmId }, 'sandbox:givenBack');
      }
    } catch (error) {
      log.error({ vmId, err: toError(error) }, 'sandbox:giveBackFailed');
    }
    this.#takeovers.add(vmId);
  }

  async #startIfLost(actor: SandboxActor): Promise<void> {
    if (wasLostRunning(actor.row)) await this.#startLost(actor);
  }

  async #startLost(actor: SandboxActor): Promise<void> {
    const { log } = this.#deps;
    try {
      await actor.startAfterLoss();
      this.#starts.forget(actor.id);
    } catch (error) {
      const isRepeated = this.#starts.add(actor.id);
      const failed = { sandboxId: actor.id, isRepeated, err: toError(error) };
      log.warn(failed, 'sandbox:startAfterLossFailed');
    }
  }
}
