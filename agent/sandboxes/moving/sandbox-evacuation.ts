import { runInBackground } from '../../../shared/background.ts';
import type { Sandboxes } from '../../../shared/directory/sandboxes.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SandboxJournal } from '../../system/journal/sandbox-journal.ts';
import type { SlotPool } from '../../network/slots/slot-pool.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { HandoverStore } from './handover-store.ts';
import { takenOverElsewhere } from './taken-over-elsewhere.ts';
import type { SandboxActor } from '../lifecycle/sandbox-actor.ts';
import type { ReleasedSandboxes } from './released-sandboxes.ts';
import type { HostedSandboxes } from '../lifecycle/hosted-sandboxes.ts';

export interface SandboxEvacuationDeps {
  readonly hostId: string;
  readonly handover: HandoverStore;
  readonly registry: HostedSandboxes;
  readonly journal: SandboxJournal;
  readonly slots: SlotPool;
  readonly released: Pick<ReleasedSandboxes, 'isDue'>;
  readonly sandboxes: Pick<Sandboxes, 'get'>;
  readonly log: Logger;
}

/** Releases sandboxes to other hosts, and forgets sandboxes that others have taken over. */
export class SandboxEvacuation {
  readonly #deps: SandboxEvacuationDeps;
  /** Sandboxes taken over by another host whose clean-up here failed. */
  readonly #unfinished = new Set<SandboxActor>();

  constructor(deps: SandboxEvacuationDeps) {
    this.#deps = deps;
  }

  /** Removes from the journal what another host has taken while no agent ran here. */
  async forgetTakenOverRows(): Promise<void> {
    const { journal, registry, handover, slots, log } = this.#deps;
    for (const row of await journal.list()) {
      if (row.uid < 0 || (await handover.storage.has(row.vmId))) continue;
      log.warn({ sandboxId: row.id, vmId: row.vmId }, 'sandbox:taken');
      registry.noteMoved(row.id);
      await failpoint('journal taken away', () => journal.remove(row.id));
      const { slot } = row;
      if (slot !== undefined) runInBackground('slot.release', () => slots.release(slot));
    }
  }

  /** How many sandboxes of this host have their machines' directories here. */
  get count(): number {
    return this.#placed.length;
  }

  /**
   * Releases every sandbox at rest to other hosts, except those that none took over lately.
   * @param isWanted asked before each: once it answers false, no further sandbox is released
   */
  async releaseResting(isWanted: () => boolean): Promise<void> {
    const { registry, released, log } = this.#deps;
    for (const actor of this.#placed.filter(({ row }) => released.isDue(row.vmId))) {
      if (!isWanted()) return;
      try {
        if (await actor.release(isWanted)) registry.forgetMoved(actor);
      } catch (error) {
        log.warn({ sandboxId: actor.id, err: toError(error) }, 'sandbox:releaseFailed');
        if (actor.hasMoved) this.#unfinished.add(actor); // The journal has it still.
      }
    }
  }

  /**
   * Leaves the sandboxes that another host has taken, which took this one for dead.
   * @throws Error when the storage cannot be read
   */
  async leaveTakenOver(): Promise<void> {
    const { handover } = this.#deps;
    for (const actor of this.#unfinished) await this.#leave(actor);
    const placed = this.#placed;
    const present = new Set(await handover.storage.list());
    for (const actor of placed.filter(({ row }) => !present.has(row.vmId))) {
      if (!actor.isPlaced || (await handover.storage.has(actor.row.vmId))) continue;
      await this.#leave(actor);
    }
  }

  /** The same by the word of the directory, for a host whose storage may not answer any more. */
  async leavePublished(): Promise<void> {
    for (const { of: actor, by } of await takenOverElsewhere(this.#deps, this.#placed)) {
      // Apart from each other: the storage may hang.
      runInBackground('sandbox.leave', () => this.#leave(actor, by));
    }
  }

  get #placed(): SandboxActor[] {
    return this.#deps.registry.actors.filter(({ isPlaced }) => isPlaced);
  }

  /** Ends its machine at once, and forgets it as soon as nothing of it is left here. */
  async #leave(actor: SandboxActor, by?: string): Promise<void> {
    const { registry, log } = this.#deps;
    const { id: sandboxId, row } = actor;
    if (actor.isPlaced) {
      log.warn({ sandboxId, vmId: row.vmId, state: row.state, by }, 'sandbox:taken');
      registry.noteMoved(sandboxId);
    }
    try {
      await actor.forgetTakenOver();
      this.#unfinished.delete(actor);
      registry.forgetMoved(actor);
    } catch (error) {
      log.warn({ sandboxId, err: toError(error) }, 'sandbox:leaveFailed');
      this.#unfinished.add(actor);
    }
  }
}
