import { randomUUID } from 'node:crypto';
import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { newSandboxId } from '../../shared/ids.ts';
import type { Logger } from '../../shared/log.ts';
import type { SlotPool } from '../network/slot-pool.ts';
import { type MachineDriver, type Shape, shapeName } from './machine-driver.ts';
import type { UidPool } from './uid-pool.ts';

/** So long nothing must have come up before one is made: who waits for a sandbox comes first. */
const REST_MS = 200;
const LOOK_EVERY_MS = 1_000;
/** After a failure. */
const RETRY_MS = 60_000;
/** A shape that nobody asked for again in this time is not kept ready any more. */
const WANTED_MS = 600_000;
/** Sandboxes take the last ones. */
const SLOTS_LEFT_MIN = 4;

/** A machine that runs and is nobody's. */
export interface SpareMachine {
  readonly vmId: string;
  readonly uid: number;
  readonly slot: number;
}

interface Spare extends SpareMachine {
  readonly shape: string;
}

interface Wanted {
  readonly shape: Shape;
  readonly at: number;
}

export interface SpareMachinesDeps {
  readonly driver: MachineDriver;
  readonly slots: SlotPool;
  readonly uids: UidPool;
  /** At most so many are kept. */
  readonly max: number;
  /** Something comes up. */
  readonly isBusy: () => boolean;
  /** The host has no room to spare. */
  readonly isLow: () => boolean;
  readonly log: Logger;
}

/**
 * Machines made ahead, of the shapes that were asked for last: a sandbox that begins with one only
 * has to be told who it is. They are in no journal: the sandbox that takes one journals it as its
 * own, and one that nobody took before the agent's end is a leftover that the next agent removes.
 */
export class SpareMachines {
  readonly #deps: SpareMachinesDeps;
  readonly #closed = new AbortController();
  readonly #spares = new Set<Spare>();
  /** Shapes by name, the one asked for last at the end; no more than machines are kept. */
  readonly #wanted = new Map<string, Wanted>();
  #timer: NodeJS.Timeout | undefined;
  #working: Promise<void> = Promise.resolve();
  #retryAt = 0;

  constructor(deps: SpareMachinesDeps) {
    this.#deps = deps;
  }

  /** One of this shape, from now on the caller's own; others like it may be asked for soon. */
  take(shape: Shape): SpareMachine | undefined {
    if (this.#deps.max === 0 || this.#closed.signal.aborted) return undefined;
    const name = shapeName(shape);
    this.#want(name, shape);
    const spare = [...this.#spares].find((each) => each.shape === name);
    if (spare !== undefined) this.#spares.delete(spare);
    return spare;
  }

  /** Nothing of them is left when this resolves. */
  async close(): Promise<void> {
    this.#closed.abort(new Error('the agent ends'));
    clearTimeout(this.#timer);
    await this.#working;
    await Promise.all([...this.#spares].map((spare) => this.#drop(spare)));
  }

  #want(name: string, { vcpuCount, memSizeMib }: Shape): void {
    this.#wanted.delete(name);
    this.#wanted.set(name, { shape: { vcpuCount, memSizeMib }, at: performance.now() });
    const [oldest] = this.#wanted.keys();
    if (this.#wanted.size > this.#deps.max && oldest !== undefined) this.#wanted.delete(oldest);
    this.#lookIn(REST_MS);
  }

  #lookIn(ms: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.#working = this.#working.then(() => this.#look());
    }, ms);
    this.#timer.unref();
  }

  async #look(): Promise<void> {
    if (this.#closed.signal.aborted) return;
    await this.#approach();
    const isDone = this.#wanted.size === 0 || this.#closed.signal.aborted;
    if (!isDone && this.#timer === undefined) this.#lookIn(LOOK_EVERY_MS);
  }

  /** Brings what there is closer to what should be. */
  async #approach(): Promise<void> {
    const { slots, isBusy, isLow, log } = this.#deps;
    const now = performance.now();
    for (const [name, { at }] of this.#wanted) {
      if (now - at > WANTED_MS) this.#wanted.delete(name);
    }
    const isScarce = slots.freeCount < SLOTS_LEFT_MIN || isLow();
    // Else what is given up for want of room would be made again with that very room.
    if (isScarce) this.#retryAt = now + RETRY_MS;
    const wanted = isScarce ? [] : [...this.#wanted.values()];
    const names = new Set(wanted.map(({ shape }) => shapeName(shape)));
    for (const spare of this.#spares) {
      if (!names.has(spare.shape)) await this.#drop(spare);
    }
    const ready = new Set([...this.#spares].map(({ shape }) => shape));
    const missing = wanted.findLast(({ shape }) => !ready.has(shapeName(shape)));
    if (missing === undefined || isBusy() || now < this.#retryAt) return;
    if (slots.freeCount <= SLOTS_LEFT_MIN) return;
    try {
      await this.#make(missing.shape);
    } catch (error) {
      this.#retryAt = now + RETRY_MS;
      if (!this.#closed.signal.aborted) log.warn({ err: toError(error) }, 'spare:notMade');
    }
  }

  async #make(shape: Shape): Promise<void> {
    const { driver, slots, uids, log } = this.#deps;
    if (!(await driver.hasTemplate(shape))) return; // It is being made.
    const begunAt = performance.now();
    const plan = await slots.lease();
    const spare = {
      ...{ vmId: newSandboxId(), uid: uids.take(), slot: plan.index },
      shape: shapeName(shape),
    };
    const { vmId, uid } = spare;
    // Other names are given to it when it becomes a sandbox.
    const identity = { machineId: vmId, bootId: randomUUID() };
    const settings = { hostname: 'prewarmed', ...identity, environment: {} };
    try {
      const spec = { vmId, uid, ...shape, slot: plan, settings };
      const { ended } = await driver.prewarm(spec, this.#closed.signal);
      this.#spares.add(spare);
      runInBackground('spare.noticeEnd', async () => {
        await ended;
        this.#handleEnded(spare);
      });
    } catch (error) {
      await this.#remove(spare);
      throw error;
    }
    const durationMs = Math.round(performance.now() - begunAt);
    log.info({ ...shape, vmId, durationMs }, 'spare:made');
  }

  #handleEnded(spare: Spare): void {
    if (!this.#spares.has(spare)) return; // A sandbox has it, or it was ended on purpose.
    this.#deps.log.warn({ vmId: spare.vmId }, 'spare:ended');
    this.#retryAt = performance.now() + RETRY_MS;
    runInBackground('spare.drop', () => this.#drop(spare));
  }

  async #drop(spare: Spare): Promise<void> {
    if (this.#spares.delete(spare)) await this.#remove(spare);
  }

  /** What cannot be removed now is by the next agent; until then nobody else gets user and slot. */
  async #remove({ vmId, uid, slot }: Spare): Promise<void> {
    const { driver, slots, uids, log } = this.#deps;
    try {
      await driver.reclaim(vmId);
      await driver.remove(vmId);
      await slots.release(slot);
      uids.release(uid);
    } catch (error) {
      log.error({ vmId, err: toError(error) }, 'spare:notRemoved');
    }
  }
}
