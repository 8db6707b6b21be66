import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { AppError } from '../../../shared/errors.ts';
import { EDGE_LIMITS } from '../limits.ts';
import { beginConnection, connectToGuest } from '../../network/slots/connect-to-guest.ts';
import { planSlot, type SlotPlan } from '../../network/slots/slot.ts';
import type { SandboxActor } from '../../sandboxes/lifecycle/sandbox-actor.ts';
import type { SandboxRegistry } from '../../sandboxes/sandbox-registry.ts';
import { DoorError, toDoorError } from './door-error.ts';
import type { Door, PortRef } from './messages.ts';
import { SandboxWaker } from './sandbox-waker.ts';

/** Connections to ports of this host's sandboxes, made from within their network slots. */
export class SandboxDoors {
  readonly #hostId: string;
  readonly #registry: Pick<SandboxRegistry, 'find'>;
  readonly #waker = new SandboxWaker();

  constructor(hostId: string, registry: Pick<SandboxRegistry, 'find'>) {
    this.#hostId = hostId;
    this.#registry = registry;
  }

  /**
   * Begins a connection for another thread.
   * @param mayWake whether a sandbox that is at rest is brought up
   * @throws DoorError
   */
  async begin(ref: PortRef, mayWake: boolean): Promise<Extract<Door, { kind: 'local' }>> {
    const { slot, isFresh } = await this.#reach(ref, mayWake);
    try {
      return { kind: 'local', fd: await beginConnection(slot, ref.port), isFresh };
    } catch (error) {
      throw toDoorError(error);
    }
  }

  /** Connects to a port. @throws DoorError */
  async open(ref: PortRef, mayWake: boolean): Promise<Socket> {
    for (;;) {
      const { slot, isFresh } = await this.#reach(ref, mayWake);
      try {
        return await connectToGuest(slot, ref.port, { timeoutMs: EDGE_LIMITS.ingressOpenMsMax });
      } catch (error) {
        const shown = toDoorError(error);
        const mayCome = isFresh && shown instanceof DoorError && shown.fault === 'nothing_listens';
        if (!mayCome) throw shown;
      }
      await sleep(EDGE_LIMITS.ingressAskEveryMs);
    }
  }

  /** The slot of a sandbox that runs, and whether it was brought up just now. */
  async #reach(ref: PortRef, mayWake: boolean): Promise<{ slot: SlotPlan; isFresh: boolean }> {
    const actor = this.#find(ref);
    if (actor.row.state !== 'running') {
      if (!mayWake) throw new DoorError('not_running', 'the sandbox does not run');
      await this.#waker.wake(actor);
    }
    const { slot } = actor.row;
    if (slot === undefined) throw new DoorError('not_running', 'the sandbox does not run');
    return { slot: planSlot(this.#hostId, slot), isFresh: this.#waker.isFresh(actor.id) };
  }

  #find(ref: PortRef): SandboxActor {
    try {
      return this.#registry.find(ref);
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      throw new DoorError('not_found', error.message, { cause: error });
    }
  }
}
