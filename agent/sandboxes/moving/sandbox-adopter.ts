import type { DiskLeases } from '../../../shared/directory/disk-leases.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import { isAtRest } from '../../../shared/sandbox-lifecycle.ts';
import type { SandboxJournal, SandboxRow } from '../../system/journal/sandbox-journal.ts';
import { failpoint } from '../../system/failpoint.ts';
import { renewFiles } from '../../system/renew-files.ts';
import type { MachineDriver } from '../../machines/driver.ts';
import type { CarriedSandbox } from './carried-sandbox.ts';
import { FailedAttempts } from './failed-attempts.ts';
import type { SandboxCarrier } from './sandbox-carrier.ts';
import { takenRow, wasLostRunning } from './taken-sandbox.ts';
import type { SandboxActor } from '../lifecycle/sandbox-actor.ts';
import type { HostedSandboxes } from '../lifecycle/hosted-sandboxes.ts';
import type { UidPool } from '../holds/uid-pool.ts';

export interface SandboxAdopterDeps {
  readonly hostId: string;
  readonly carrier: SandboxCarrier;
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
const ADOPTIONS = { pauses: { min: 1_000, max: 30_000 }, max: 7 } as const;
/** For how long this host leaves alone what it could not go on with. */
const LEFT_ALONE_MS = 600_000;

/** Takes sandboxes over from other hosts. */
export class SandboxAdopter {
  readonly #deps: SandboxAdopterDeps;
  /** By VM id: they lie in this host's directory, and its journal has them not. */
  readonly #adoptions = new FailedAttempts(ADOPTIONS.pauses, ADOPTIONS.max);
  /** By id of the sandbox. */
  readonly #starts = new FailedAttempts(STARTS.pauses, STARTS.max);
  /**
   * Until when what this host could not go on with is left alone, by VM id and `performance.now()`.
   */
  readonly #leftAlone = new Map<string, number>();

  constructor(deps: SandboxAdopterDeps) {
    this.#deps = deps;
  }

  /**
   * Goes on with everything whose taking a former agent of this host began.
   * @param owned the machines of sandboxes and snapshots that the journal has
   */
  async continueTaking(owned: ReadonlySet<string>): Promise<void> {
    const { carrier, registry } = this.#deps;
    for (const actor of registry.actors.filter(({ isPlaced }) => isPlaced)) {
      await carrier.finishTaking(actor.row);
      await this.#startIfLost(actor);
    }
    for (const vmId of await carrier.storage.list()) {
      if (!owned.has(vmId)) await this.adopt(vmId);
    }
    for (const id of await carrier.released()) registry.noteMoved(id);
  }

  /**
   * How many sandboxes wait for another attempt: to go on with them, or to start them after a loss.
   */
  get failing(): { readonly adopt: number; readonly start: number } {
    return { adopt: this.#adoptions.size, start: this.#starts.size };
  }

  /**
   * Whether this host has tried to go on with a machine in vain, and leaves it to others for a
   * while.
   */
  leavesAlone(vmId: string): boolean {
    const until = this.#leftAlone.get(vmId) ?? 0;
    if (until < performance.now()) this.#leftAlone.delete(vmId);
    return this.#leftAlone.has(vmId);
  }

  /** Repeats what has failed, once that is due. */
  async repeatFailed(): Promise<void> {
    const { carrier, registry } = this.#deps;
    for (const vmId of this.#adoptions.due) {
      if (await carrier.storage.has(vmId)) await this.adopt(vmId);
      else this.#adoptions.forget(vmId);
    }
    for (const id of this.#starts.due) {
      const actor = registry.actors.find((each) => each.id === id);
      if (actor?.isPlaced === true && wasLostRunning(actor.row)) await this.#startLost(actor);
      else this.#starts.forget(id);
    }
  }

  /**
   * Goes on with a sandbox that another host had and whose machine's directory is here by now. May
   * be repeated after a crash. A failure is repeated some times; then the machine is given up for
   * others.
   * @returns false when what lies there is none, or cannot be read
   */
  async adopt(vmId: string): Promise<boolean> {
    const { registry, log } = this.#deps;
    let actor: SandboxActor | undefined;
    try {
      actor = await this.#insert(vmId);
    } catch (error) {
      const isRepeated = this.#adoptions.add(vmId);
      log.error({ vmId, isRepeated, err: toError(error) }, 'sandbox:adoptFailed');
      if (!isRepeated) await this.#giveBack(vmId);
      return false;
    }
    this.#adoptions.forget(vmId);
    if (actor === undefined) {
      log.error({ vmId }, 'sandbox:notAdopted');
      return false;
    }
    await actor.recover();
    registry.noteBack(actor.id);
    await actor.republish();
    await this.#startIfLost(actor);
    return true;
  }

  /** Makes the sandbox this host's. @returns undefined when it is none that this host lacks */
  async #insert(vmId: string): Promise<SandboxActor | undefined> {
    const { carrier, registry, driver, journal, uids, log } = this.#deps;
    const carried = await carrier.read(carrier.storage.directoryOf(vmId), vmId);
    if (carried === undefined || registry.has(carried.row.id)) return undefined;
    await carrier.readExecs(carried.row); // Not taken yet while they cannot be read.
    const uid = uids.take();
    let row: SandboxRow;
    try {
      await driver.receive?.({ vmId, uid });
      if (!isAtRest(carried.row.state)) {
        const { directory } = carrier.outputOf({ vmId });
        await failpoint('renew output', () => renewFiles(directory));
        await this.#freeDisks(carried);
      }
      row = takenRow(carried.row, { uid, hasCheckpoint: await driver.hasCheckpoint(vmId) });
      await failpoint('journal taken', () => journal.insert(row));
    } catch (error) {
      uids.release(uid);
      throw error;
    }
    registry.noteMoved(row.id); // Nobody finds it here before it is recovered.
    const actor = registry.add(row);
    log.info({ sandboxId: row.id, vmId, from: carried.hostId, state: row.state }, 'sandbox:moved');
    await carrier.finishTaking(row);
    await registry.holdImage(row);
    return actor;
  }

  /**
   * Frees the disks that the lost host holds for the sandbox, whose machine runs no more. A host
   * that has one attached all the same is shut out of the storage before this one mounts it.
   */
  async #freeDisks({ hostId, row }: CarriedSandbox): Promise<void> {
    const { diskLeases, log } = this.#deps;
    for (const { diskId } of row.config.mounts ?? []) {
      const disk = { accountId: row.accountId, diskId };
      if (!(await failpoint('break hold', () => diskLeases.breakHold(disk, hostId)))) continue;
      log.warn({ sandboxId: row.id, diskId, lostHostId: hostId }, 'disk:holdBroken');
    }
  }

  /**
   * Gives everything up that this host has taken and not gone on with, since it is to be empty.
   * @param isWanted asked before each: once it answers false, nothing further is given up
   */
  async giveAllBack(isWanted: () => boolean): Promise<void> {
    for (const vmId of this.#adoptions.ids) {
      if (!isWanted()) return;
      await this.#giveBack(vmId);
    }
  }

  async #giveBack(vmId: string): Promise<void> {
    const { carrier, log } = this.#deps;
    this.#leftAlone.set(vmId, performance.now() + LEFT_ALONE_MS);
    try {
      if (await carrier.storage.release(vmId)) {
        this.#adoptions.forget(vmId);
        return log.warn({ vmId }, 'sandbox:givenBack');
      }
    } catch (error) {
      log.error({ vmId, err: toError(error) }, 'sandbox:giveBackFailed');
    }
    this.#adoptions.add(vmId);
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
