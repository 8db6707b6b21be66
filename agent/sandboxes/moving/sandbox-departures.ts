import { runInBackground } from '../../../shared/background.ts';
import type { Sandboxes } from '../../../shared/directory/sandboxes.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SandboxJournal } from '../../system/journal/sandbox-journal.ts';
import type { SlotPool } from '../../network/slots/slot-pool.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { SandboxCarrier } from './sandbox-carrier.ts';
import { takenElsewhere } from './taken-elsewhere.ts';
import type { SandboxActor } from '../lifecycle/sandbox-actor.ts';
import type { SandboxOffers } from './sandbox-offers.ts';
import type { HostedSandboxes } from '../lifecycle/hosted-sandboxes.ts';

export interface SandboxDeparturesDeps {
  readonly hostId: string;
  readonly carrier: SandboxCarrier;
  readonly registry: HostedSandboxes;
  readonly journal: SandboxJournal;
  readonly slots: SlotPool;
  readonly offers: Pick<SandboxOffers, 'isDue'>;
  readonly sandboxes: Pick<Sandboxes, 'get'>;
  readonly log: Logger;
}

/** Lets go of sandboxes: of those given up for other hosts, and of those that others have taken. */
export class SandboxDepartures {
  readonly #deps: SandboxDeparturesDeps;
  /** Those of which something is left here, since the storage or the journal failed. */
  readonly #unfinished = new Set<SandboxActor>();

  constructor(deps: SandboxDeparturesDeps) {
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

  /** How many sandboxes of this host have their machines' directories here. */
  get count(): number {
    return this.#placed.length;
  }

  /**
   * Gives every sandbox at rest up for other hosts, but for those that none took lately.
   * @param isWanted asked before each: once it answers false, no further sandbox is given up
   */
  async releaseResting(isWanted: () => boolean): Promise<void> {
    const { registry, offers, log } = this.#deps;
    for (const actor of this.#placed.filter(({ row }) => offers.isDue(row.vmId))) {
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
  async leaveTaken(): Promise<void> {
    const { carrier } = this.#deps;
    for (const actor of this.#unfinished) await this.#leave(actor);
    const placed = this.#placed;
    const present = new Set(await carrier.storage.list());
    for (const actor of placed.filter(({ row }) => !present.has(row.vmId))) {
      if (!actor.isPlaced || (await carrier.storage.has(actor.row.vmId))) continue;
      await this.#leave(actor);
    }
  }

  /** The same by the word of the directory, for a host whose storage may not answer any more. */
  async leavePublished(): Promise<void> {
    for (const { of: actor, by } of await takenElsewhere(this.#deps, this.#placed)) {
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
      await actor.forgetTaken();
      this.#unfinished.delete(actor);
      registry.forgetMoved(actor);
    } catch (error) {
      log.warn({ sandboxId, err: toError(error) }, 'sandbox:leaveFailed');
      this.#unfinished.add(actor);
    }
  }
}
