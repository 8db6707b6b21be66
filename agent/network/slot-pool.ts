import assert from 'node:assert';
import { runInBackground } from '../../shared/background.ts';
import { AppError, toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { Logger } from '../../shared/log.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import { planSlot, type SlotPlan } from './slot.ts';
import { makeSlot, removeSlot, renewSlot, slotsWithNamespace } from './slot-namespace.ts';

/** Slots made or removed at the same time. */
const LANES = 2;
const RETRY_AFTER_FAILURE_MS = 1_000;
/** While some are ready, another one is made only after whoever took one should have come up. */
const FILL_LATER_MS = 500;

export interface SlotPoolOptions {
  readonly hostId: string;
  readonly slotsMax: number;
  /** Slots made ahead, at most. */
  readonly readyMax: number;
  /** The slots that the journal says are in use. */
  readonly leased: readonly number[];
  /** How slots are made on this host; tests may have others than network namespaces. */
  readonly namespaces?: SlotNamespaces;
  readonly log: Logger;
}

/** What a slot consists of on the host. All may be repeated. */
export interface SlotNamespaces {
  /** The slots of a host of which there is something. */
  list(hostId: string): Promise<number[]>;
  make(plan: SlotPlan): Promise<void>;
  /** Makes the slot as new for another agent. @returns false when it has to be made again */
  renew(plan: SlotPlan): Promise<boolean>;
  remove(plan: SlotPlan): Promise<void>;
}

const KERNEL: SlotNamespaces = {
  list: slotsWithNamespace,
  make: makeSlot,
  renew: renewSlot,
  remove: removeSlot,
};

interface Slot {
  readonly plan: SlotPlan;
  /** Settles when it can be used; undefined for one of a former agent's that nobody asked for yet. */
  made: Promise<void> | undefined;
  state: 'ahead' | 'leased' | 'leaving';
}

/**
 * The network slots of this host. Each is made for one lease and removed after it, so that nothing of
 * one sandbox is there for the next; some are made ahead. A slot is in the pool from the beginning
 * of its making to the end of its removal.
 */
export class SlotPool {
  readonly #options: SlotPoolOptions;
  readonly #namespaces: SlotNamespaces;
  readonly #slots = new Map<number, Slot>();
  /** What is done to one slot is done in order, for it always has the same lane. */
  readonly #lanes: Promise<unknown>[] = Array.from({ length: LANES }, () => Promise.resolve());
  readonly #retries = new Set<NodeJS.Timeout>();
  #filling: NodeJS.Timeout | undefined;
  #isResting = false;
  #isClosed = false;

  private constructor(options: SlotPoolOptions) {
    this.#options = options;
    this.#namespaces = options.namespaces ?? KERNEL;
    for (const index of options.leased) {
      this.#slots.set(index, { plan: this.#plan(index), made: undefined, state: 'leased' });
    }
  }

  /** Removes the slots of this host that are not in use, and begins to make some ahead. */
  static async open(options: SlotPoolOptions): Promise<SlotPool> {
    const { hostId, slotsMax, log } = options;
    assert(slotsMax <= LIMITS.slotsPerHostMax);
    const pool = new SlotPool(options);
    const left = (await pool.#namespaces.list(hostId)).filter((index) => !pool.#slots.has(index));
    const removed = Promise.all(
      left.map((index) => {
        log.warn({ slot: index }, 'reclaim:slot');
        return pool.#inLane(index, () => pool.#namespaces.remove(pool.#plan(index)));
      }),
    );
    // A start need not wait longer: whoever takes one of these numbers comes after its removal.
    if (await settledWithin(removed, LIMITS.startStepMsMax)) await removed;
    else runInBackground('slot.reclaim', () => removed);
    pool.#fill();
    return pool;
  }

  /**
   * A slot that is made and nobody else's, until `release`.
   * @throws AppError `no_capacity` when all are leased
   */
  async lease(): Promise<SlotPlan> {
    assert(!this.#isClosed, 'the pool is closed');
    const slot = this.#lowestAhead() ?? this.#beginNext();
    if (slot === undefined) {
      throw new AppError('no_capacity', 'all network slots of the host are taken; try again');
    }
    slot.state = 'leased';
    if (this.#countAhead() > 0) this.#fillLater();
    else this.#fill();
    await slot.made;
    return slot.plan;
  }

  /** The slot of somebody who has leased it; one of a former agent's is repaired if need be. */
  async take(index: number): Promise<SlotPlan> {
    const slot = this.#slots.get(index);
    assert(slot?.state === 'leased', `slot ${index} is not leased`);
    slot.made ??= this.#renew(slot);
    await slot.made;
    return slot.plan;
  }

  /** Removes the slot, so that nothing uses it and another can be made in its place; idempotent. */
  async release(index: number): Promise<void> {
    const slot = this.#slots.get(index);
    if (slot?.state !== 'leased') return;
    slot.state = 'leaving';
    await this.#remove(slot);
  }

  /** Removes the slots that nobody leased; the others stay for the next agent. */
  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#filling);
    for (const retry of this.#retries) clearTimeout(retry);
    const ahead = [...this.#slots.values()].filter(({ state }) => state === 'ahead');
    for (const slot of ahead) slot.state = 'leaving';
    await Promise.all(ahead.map((slot) => this.#remove(slot)));
    await Promise.all(this.#lanes);
  }

  /** How many can still be leased. */
  get freeCount(): number {
    return this.#options.slotsMax - this.#slots.size + this.#countAhead();
  }

  #plan(index: number): SlotPlan {
    return planSlot(this.#options.hostId, index);
  }

  /** After everything that was asked for on the same lane. */
  #inLane<T>(index: number, work: () => Promise<T>): Promise<T> {
    const lane = index % LANES;
    const done = (this.#lanes[lane] ?? Promise.resolve()).then(work);
    this.#lanes[lane] = done.catch(() => undefined);
    return done;
  }

  #countAhead(): number {
    return [...this.#slots.values()].filter(({ state }) => state === 'ahead').length;
  }

  #lowestAhead(): Slot | undefined {
    return [...this.#slots.values()]
      .filter(({ state }) => state === 'ahead')
      .sort((a, b) => a.plan.index - b.plan.index)[0];
  }

  #fill(): void {
    while (!this.#isClosed && !this.#isResting && this.#countAhead() < this.#options.readyMax) {
      if (this.#beginNext() === undefined) return;
    }
  }

  #fillLater(): void {
    this.#filling ??= setTimeout(() => {
      this.#filling = undefined;
      this.#fill();
    }, FILL_LATER_MS);
  }

  /** Begins to make the lowest slot of which there is nothing. */
  #beginNext(): Slot | undefined {
    let index = 0;
    while (this.#slots.has(index)) index += 1;
    if (index >= this.#options.slotsMax) return undefined;
    const plan = this.#plan(index);
    const made = this.#inLane(index, () => this.#namespaces.make(plan));
    const slot: Slot = { plan, made, state: 'ahead' };
    this.#slots.set(index, slot);
    made.catch((error: unknown) => this.#handleNotMade(slot, toError(error)));
    return slot;
  }

  /** Whoever leased it learns of it; then a pause, so that a broken host is not hammered. */
  #handleNotMade(slot: Slot, error: Error): void {
    this.#options.log.error({ slot: slot.plan.index, err: error }, 'slot:notMade');
    this.#isResting = true;
    this.#later(() => {
      this.#isResting = false;
      this.#fill();
    });
    if (slot.state === 'leaving') return; // Its removal is on its way.
    slot.state = 'leaving';
    runInBackground('slot.remove', () => this.#remove(slot));
  }

  /** A slot that another agent made, and which a machine may be using. */
  async #renew(slot: Slot): Promise<void> {
    const { plan } = slot;
    try {
      await this.#inLane(plan.index, async () => {
        if (await this.#namespaces.renew(plan)) return;
        this.#options.log.warn({ slot: plan.index }, 'slot:madeAgain');
        await this.#namespaces.remove(plan);
        await this.#namespaces.make(plan);
      });
    } catch (error) {
      slot.made = undefined; // The next one who asks tries again.
      throw error;
    }
  }

  /** Tries until it is removed; resolves after the first time. */
  async #remove(slot: Slot): Promise<void> {
    const { index } = slot.plan;
    try {
      await this.#inLane(index, () => this.#namespaces.remove(slot.plan));
      this.#slots.delete(index);
      this.#fill();
    } catch (error) {
      this.#options.log.error({ slot: index, err: toError(error) }, 'slot:notRemoved');
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
