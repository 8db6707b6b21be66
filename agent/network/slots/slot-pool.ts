import assert from 'node:assert';
import { runInBackground } from '../../../shared/background.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import { LIMITS } from '../../../shared/limits.ts';
import { SYSTEM_LIMITS } from '../../system/limits.ts';
import type { Logger } from '../../../shared/log.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { planSlot, type SlotPlan } from './slot.ts';
import { slotNamespaces, type SlotNamespaces } from './slot-namespace.ts';

/** How many slots are made or removed at the same time. */
const LANES = 2;
const RETRY_AFTER_FAILURE_MS = 1_000;
/**
 * While slots are ready, the next is made only after this delay, so as not to slow a machine's
 * start.
 */
const FILL_LATER_MS = 500;

export interface SlotPoolOptions {
  readonly hostId: string;
  readonly slotsMax: number;
  /** How many slots are kept ready. */
  readonly readyMax: number;
  /** Slots that sandboxes in the journal hold. */
  readonly leased: readonly number[];
  /** How slots are made: without it, so that nothing gets into or out of them. */
  readonly namespaces?: SlotNamespaces;
  readonly log: Logger;
}

/** Slots for virtual machines that reach nothing. */
const CLOSED = slotNamespaces({ guestLink: 'tap', routerOf: undefined });

interface Slot {
  readonly plan: SlotPlan;
  /** Settles when the slot can be used; undefined for a former agent's slot until it is taken. */
  made: Promise<void> | undefined;
  state: 'ready' | 'leased' | 'leaving';
}

/**
 * The network slots of this host. Each is made for one sandbox and removed after it, so that no
 * sandbox finds another's addresses or connections; a few are kept ready. A slot belongs to the
 * pool from the moment its creation begins until its removal has ended.
 */
export class SlotPool {
  readonly #options: SlotPoolOptions;
  readonly #namespaces: SlotNamespaces;
  readonly #slots = new Map<number, Slot>();
  /** Each slot always uses the same lane, so the operations on one slot run in order. */
  readonly #lanes: readonly SerialQueue[] = Array.from({ length: LANES }, () => new SerialQueue());
  readonly #retries = new Set<NodeJS.Timeout>();
  #filling: NodeJS.Timeout | undefined;
  #isBackingOff = false;
  #isClosed = false;

  private constructor(options: SlotPoolOptions) {
    this.#options = options;
    this.#namespaces = options.namespaces ?? CLOSED;
    for (const index of options.leased) {
      this.#slots.set(index, { plan: this.#plan(index), made: undefined, state: 'leased' });
    }
  }

  /** Removes the slots of this host that no sandbox holds, and begins to make some ready. */
  static async open(options: SlotPoolOptions): Promise<SlotPool> {
    const { hostId, slotsMax } = options;
    assert(slotsMax <= LIMITS.slotsPerHostMax);
    const pool = new SlotPool(options);
    const left = (await pool.#namespaces.list(hostId)).filter((index) => !pool.#slots.has(index));
    const removed = Promise.all(left.map((index) => pool.#reclaim(index)));
    // Longer removals continue in the background: nobody leases a slot of that number before.
    await settledWithin(removed, SYSTEM_LIMITS.startStepMsMax);
    pool.#fill();
    return pool;
  }

  /**
   * Leases a slot that is ready to use, until {@link release}.
   * @throws AppError `no_capacity` when all slots are leased; the failure to make one
   */
  async lease(): Promise<SlotPlan> {
    assert(!this.#isClosed, 'the pool is closed');
    const slot = this.#lowestReady() ?? this.#beginNext();
    if (slot === undefined) {
      throw new AppError('no_capacity', 'all network slots of the host are taken; try again');
    }
    slot.state = 'leased';
    if (this.#countReady() > 0) this.#fillLater();
    else this.#fill();
    await slot.made;
    return slot.plan;
  }

  /** Returns a slot that is leased already; a former agent's slot is checked and repaired first. */
  async take(index: number): Promise<SlotPlan> {
    const slot = this.#slots.get(index);
    assert(slot?.state === 'leased', `slot ${index} is not leased`);
    slot.made ??= this.#renew(slot);
    await slot.made;
    return slot.plan;
  }

  /** Ends a lease and removes the slot; its number is free afterwards. Idempotent. */
  async release(index: number): Promise<void> {
    const slot = this.#slots.get(index);
    if (slot?.state !== 'leased') return;
    slot.state = 'leaving';
    await this.#remove(slot);
  }

  /** Removes the slots that are not leased; leased ones stay for the next agent. */
  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#filling);
    for (const retry of this.#retries) clearTimeout(retry);
    const ready = [...this.#slots.values()].filter(({ state }) => state === 'ready');
    for (const slot of ready) slot.state = 'leaving';
    await Promise.all(ready.map((slot) => this.#remove(slot)));
    await Promise.all(this.#lanes.map(({ idle }) => idle));
  }

  /** How many slots can still be leased. */
  get freeCount(): number {
    return this.#options.slotsMax - this.#slots.size + this.#countReady();
  }

  #plan(index: number): SlotPlan {
    return planSlot(this.#options.hostId, index);
  }

  /** Runs the work after everything that was added to the slot's lane before. */
  #inLane<T>(index: number, work: () => Promise<T>): Promise<T> {
    const lane = this.#lanes[index % LANES];
    assert(lane !== undefined);
    return lane.add(work);
  }

  #countReady(): number {
    return [...this.#slots.values()].filter(({ state }) => state === 'ready').length;
  }

  #lowestReady(): Slot | undefined {
    return [...this.#slots.values()]
      .filter(({ state }) => state === 'ready')
      .sort((a, b) => a.plan.index - b.plan.index)[0];
  }

  #fill(): void {
    while (!this.#isClosed && !this.#isBackingOff && this.#countReady() < this.#options.readyMax) {
      if (this.#beginNext() === undefined) return;
    }
  }

  #fillLater(): void {
    this.#filling ??= setTimeout(() => {
      this.#filling = undefined;
      this.#fill();
    }, FILL_LATER_MS);
  }

  /** Begins to make the slot with the lowest number that is not in the pool. */
  #beginNext(): Slot | undefined {
    let index = 0;
    while (this.#slots.has(index)) index += 1;
    if (index >= this.#options.slotsMax) return undefined;
    const plan = this.#plan(index);
    const made = this.#inLane(index, () => this.#namespaces.make(plan));
    const slot: Slot = { plan, made, state: 'ready' };
    this.#slots.set(index, slot);
    made.catch((error: unknown) => this.#handleCreateFailure(slot, toError(error)));
    return slot;
  }

  /**
   * `lease` passes the error on; no slot is made ready for a while, so as not to hammer a broken
   * host.
   */
  #handleCreateFailure(slot: Slot, error: Error): void {
    this.#options.log.error({ slot: slot.plan.index, err: error }, 'slot:createFailed');
    this.#isBackingOff = true;
    this.#later(() => {
      this.#isBackingOff = false;
      this.#fill();
    });
    if (slot.state === 'leaving') return; // Its removal has begun.
    slot.state = 'leaving';
    runInBackground('slot.remove', () => this.#remove(slot));
  }

  /** Checks a former agent's slot, which a machine may be using, and makes it again if need be. */
  async #renew(slot: Slot): Promise<void> {
    const { plan } = slot;
    try {
      await this.#inLane(plan.index, async () => {
        if (await this.#namespaces.renew(plan)) return;
        this.#options.log.warn({ slot: plan.index }, 'slot:rebuilt');
        await this.#namespaces.remove(plan);
        await this.#namespaces.make(plan);
      });
    } catch (error) {
      slot.made = undefined; // The next `take` tries again.
      throw error;
    }
  }

  /** Removes what a former agent left of a slot. */
  #reclaim(index: number): Promise<void> {
    this.#options.log.warn({ slot: index }, 'reclaim:slot');
    const slot: Slot = { plan: this.#plan(index), made: undefined, state: 'leaving' };
    this.#slots.set(index, slot);
    return this.#remove(slot);
  }

  /** Resolves after the first attempt; a failed removal is retried in the background. */
  async #remove(slot: Slot): Promise<void> {
    const { index } = slot.plan;
    try {
      await this.#inLane(index, () => this.#namespaces.remove(slot.plan));
      this.#slots.delete(index);
      this.#fill();
    } catch (error) {
      this.#options.log.error({ slot: index, err: toError(error) }, 'slot:removeFailed');
      this.#later(() => runInBackground('slot.remove', () => this.#remove(slot)));
    }
  }

  #later(work: () => void): void {
    if (this.#isClosed) return;
    const retry = setTimeout(() => {
      this.#retries.delete(retry);
      work();
    }, RETRY_AFTER_FAILURE_MS);
    this.#retries.add(retry);
  }
}
