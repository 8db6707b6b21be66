import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';
import type { SandboxJournal } from '../journal/sandbox-journal.ts';
import type { SlotPool } from '../network/slot-pool.ts';
import { failpoint } from '../system/failpoint.ts';
import { renewFiles } from '../system/renew-files.ts';
import type { MachineDriver } from './machine-driver.ts';
import type { SandboxCarrier } from './moving/sandbox-carrier.ts';
import { isAtRest, takenExec, takenRow, wasLostRunning } from './moving/taken-sandbox.ts';
import type { SandboxActor } from './sandbox-actor.ts';
import type { SandboxRegistry } from './sandbox-registry.ts';
import type { UidPool } from './uid-pool.ts';

export interface SandboxAdopterDeps {
  readonly hostId: string;
  readonly carrier: SandboxCarrier;
  readonly registry: SandboxRegistry;
  readonly driver: MachineDriver;
  readonly journal: SandboxJournal;
  readonly uids: UidPool;
  readonly slots: SlotPool;
  readonly log: Logger;
}

/** Takes sandboxes over from other hosts, and lets go of those that other hosts have or may take. */
export class SandboxAdopter {
  readonly #deps: SandboxAdopterDeps;

  constructor(deps: SandboxAdopterDeps) {
    this.#deps = deps;
  }

  /** Removes from the journal what another host has taken while no agent ran here. */
  async forgetTakenRows(): Promise<void> {
    const { journal, registry, carrier, slots, log } = this.#deps;
    for (const row of await journal.list()) {
      if (row.uid < 0 || (await carrier.storage.has(row.vmId))) continue;
      log.warn({ sandboxId: row.id, vmId: row.vmId }, 'sandbox:taken');
      registry.noteMoved(row.id);
      await failpoint('journal taken away', () => journal.remove(row.id));
      const { slot } = row;
      if (slot !== undefined) runInBackground('slot.release', () => slots.release(slot));
    }
  }

  /**
   * Goes on with everything whose taking a former agent of this host began.
   * @param owned the machines of sandboxes and snapshots that the journal has
   */
  async continueTaking(owned: ReadonlySet<string>): Promise<void> {
    const { carrier, registry } = this.#deps;
    await Promise.all(registry.actors.map((actor) => this.#finishTaking(actor)));
    for (const vmId of await carrier.storage.list()) {
      if (!owned.has(vmId)) await this.adopt(vmId);
    }
    for (const id of await carrier.released()) registry.noteMoved(id);
  }

  /**
   * Goes on with a sandbox that another host had and whose machine's directory is here by now. May be
   * repeated after a crash.
   * @returns false when what lies there is none, or cannot be read
   */
  async adopt(vmId: string): Promise<boolean> {
    const { carrier, registry, driver, journal, uids, log } = this.#deps;
    const directory = carrier.storage.directoryOf(vmId);
    const uid = uids.take();
    let actor: SandboxActor;
    try {
      const carried = await carrier.read(directory, vmId);
      if (carried === undefined || registry.has(carried.row.id))
        throw new Error('it is no sandbox that this host lacks');
      await driver.receive?.({ vmId, uid });
      if (!isAtRest(carried.row.state)) await renewFiles(carrier.outputOf({ vmId }));
      const hasCheckpoint = await driver.hasCheckpoint(vmId);
      const row = takenRow(carried.row, { uid, hasCheckpoint });
      await failpoint('journal taken', () => journal.insert(row));
      actor = registry.add(row);
      await registry.holdImage(row);
      log.info(
        { sandboxId: row.id, vmId, from: carried.hostId, state: row.state },
        'sandbox:moved',
      );
    } catch (error) {
      uids.release(uid);
      log.error({ vmId, err: toError(error) }, 'sandbox:adoptFailed');
      return false;
    }
    await this.#takeExecs(actor);
    registry.noteBack(actor.id);
    await actor.recover();
    await this.#finishTaking(actor);
    return true;
  }

  async #takeExecs({ row }: SandboxActor): Promise<void> {
    const { carrier, journal, log } = this.#deps;
    try {
      const execs = await carrier.readExecs(carrier.storage.directoryOf(row.vmId), row);
      const taken = execs.map((exec) => takenExec(exec, row));
      await failpoint('journal taken execs', () => journal.addExecs(taken));
    } catch (error) {
      log.error({ sandboxId: row.id, err: toError(error) }, 'sandbox:takeExecsFailed');
    }
  }

  /**
   * Makes the copy beside the machine this host's own, which ends a taking, and starts what ran when
   * its former host was lost.
   */
  async #finishTaking(actor: SandboxActor): Promise<void> {
    const { carrier, hostId, log } = this.#deps;
    if (!actor.isPlaced) return;
    const { vmId } = actor.row;
    const carried = await carrier.read(carrier.storage.directoryOf(vmId), vmId).catch(toError);
    const isOwn = carried !== undefined && 'hostId' in carried && carried.hostId === hostId;
    if (!isOwn) {
      if (carried !== undefined && 'hostId' in carried) await this.#takeExecs(actor);
      await carrier.keep(actor.row);
    }
    if (!wasLostRunning(actor.row)) return;
    await actor.startAfterLoss().catch((error: unknown) => {
      log.warn({ sandboxId: actor.id, err: toError(error) }, 'sandbox:startAfterLossFailed');
    });
  }

  /** Gives every sandbox at rest up for other hosts. */
  async releaseResting(): Promise<void> {
    const { registry, log } = this.#deps;
    for (const actor of registry.actors.filter(({ isPlaced }) => isPlaced)) {
      try {
        if (await actor.release()) registry.forgetMoved(actor);
      } catch (error) {
        log.warn({ sandboxId: actor.id, err: toError(error) }, 'sandbox:releaseFailed');
      }
    }
  }

  /** Forgets the sandboxes that another host has taken: one that took this one for dead. */
  async forgetTaken(): Promise<void> {
    const { carrier, registry, log } = this.#deps;
    const placed = registry.actors.filter(({ isPlaced }) => isPlaced);
    const present = new Set(await carrier.storage.list());
    for (const actor of placed.filter(({ row }) => !present.has(row.vmId))) {
      if (!actor.isPlaced || (await carrier.storage.has(actor.row.vmId))) continue;
      log.warn({ sandboxId: actor.id, vmId: actor.row.vmId }, 'sandbox:taken');
      await actor.forgetTaken();
      registry.forgetMoved(actor);
    }
  }
}
