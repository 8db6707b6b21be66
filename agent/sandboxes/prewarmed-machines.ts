import { randomUUID } from 'node:crypto';
import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { newSandboxId } from '../../shared/ids.ts';
import type { Logger } from '../../shared/log.ts';
import type { SlotPool } from '../network/slot-pool.ts';
import { type MachineDriver, type Shape, shapeName } from './machine-driver.ts';
import type { UidPool } from './uid-pool.ts';

/** A machine is prewarmed only after nothing came up for so long: who waits for a sandbox comes first. */
const REST_MS = 200;
const LOOK_EVERY_MS = 1_000;
/** After a failure. */
const RETRY_MS = 60_000;
/** A shape that nobody asked for again in this time is not kept ready any more. */
const WANTED_MS = 600_000;
/** The last slots are left to sandboxes. */
const SLOTS_LEFT_MIN = 4;

/** A running machine that no sandbox has yet. */
export interface PrewarmedMachine {
  readonly vmId: string;
  readonly uid: number;
  readonly slot: number;
}

interface Prewarmed extends PrewarmedMachine {
  readonly shape: string;
}

interface Wanted {
  readonly shape: Shape;
  readonly at: number;
}

export interface PrewarmedMachinesDeps {
  readonly driver: MachineDriver;
  readonly slots: SlotPool;
  readonly uids: UidPool;
  /** At most so many are kept. */
  readonly max: number;
  /** Something comes up. */
  readonly isBusy: () => boolean;
  /** The host is short of memory or storage. */
  readonly isLow: () => boolean;
  readonly log: Logger;
}

/**
 * Keeps machines ready of the shapes that were requested last: a sandbox that takes one only has to
 * be given its identity. They are in no journal: the sandbox that takes one journals it as its own,
 * and one that nobody took before the agent's end is an orphan that the next agent reclaims.
 */
export class PrewarmedMachines {
  readonly #deps: PrewarmedMachinesDeps;
  readonly #closed = new AbortController();
  readonly #prewarmed = new Set<Prewarmed>();
  /** Shapes by name, the one asked for last at the end; no more than machines are kept. */
  readonly #wanted = new Map<string, Wanted>();
  #timer: NodeJS.Timeout | undefined;
  #working: Promise<void> = Promise.resolve();
  #retryAt = 0;

  constructor(deps: PrewarmedMachinesDeps) {
    this.#deps = deps;
  }

  /** Takes one of this shape, which is the caller's own from now on, and keeps another one ready. */
  take(shape: Shape): PrewarmedMachine | undefined {
    if (this.#deps.max === 0 || this.#closed.signal.aborted) return undefined;
    const name = shapeName(shape);
    this.#want(name, shape);
    const machine = [...this.#prewarmed].find((each) => each.shape === name);
    if (machine !== undefined) this.#prewarmed.delete(machine);
    return machine;
  }

  /** Nothing of them is left when this resolves. */
  async close(): Promise<void> {
    this.#closed.abort(new Error('the agent ends'));
    clearTimeout(this.#timer);
    await this.#working;
    await Promise.all([...this.#prewarmed].map((machine) => this.#drop(machine)));
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
    // Otherwise what is evicted to free memory would be prewarmed again with that very memory.
    if (isScarce) this.#retryAt = now + RETRY_MS;
    const wanted = isScarce ? [] : [...this.#wanted.values()];
    const names = new Set(wanted.map(({ shape }) => shapeName(shape)));
    for (const machine of this.#prewarmed) {
      if (!names.has(machine.shape)) await this.#drop(machine);
    }
    const ready = new Set([...this.#prewarmed].map(({ shape }) => shape));
    const missing = wanted.findLast(({ shape }) => !ready.has(shapeName(shape)));
    if (missing === undefined || isBusy() || now < this.#retryAt) return;
    if (slots.freeCount <= SLOTS_LEFT_MIN) return;
    try {
      await this.#make(missing.shape);
    } catch (error) {
      this.#retryAt = now + RETRY_MS;
      if (!this.#closed.signal.aborted) log.warn({ err: toError(error) }, 'prewarmed:startFailed');
    }
  }

  async #make(shape: Shape): Promise<void> {
    const { driver, slots, uids, log } = this.#deps;
    if (!(await driver.hasTemplate(shape))) return; // It is being made.
    const begunAt = performance.now();
    const plan = await slots.lease();
    const machine = {
      ...{ vmId: newSandboxId(), uid: uids.take(), slot: plan.index },
      shape: shapeName(shape),
    };
    const { vmId, uid } = machine;
    // Other names are given to it when it becomes a sandbox.
    const identity = { machineId: vmId, bootId: randomUUID() };
    const settings = { hostname: 'prewarmed', ...identity, environment: {} };
    try {
      const spec = { vmId, uid, ...shape, slot: plan, settings };
      const { ended } = await driver.prewarm(spec, this.#closed.signal);
      this.#prewarmed.add(machine);
      runInBackground('prewarmed.noticeEnd', async () => {
        await ended;
        this.#handleEnded(machine);
      });
    } catch (error) {
      await this.#remove(machine);
      throw error;
    }
    const durationMs = Math.round(performance.now() - begunAt);
    log.info({ ...shape, vmId, durationMs }, 'prewarmed:started');
  }

  #handleEnded(machine: Prewarmed): void {
    if (!this.#prewarmed.has(machine)) return; // A sandbox has it, or it was ended on purpose.
    this.#deps.log.warn({ vmId: machine.vmId }, 'prewarmed:ended');
    this.#retryAt = performance.now() + RETRY_MS;
    runInBackground('prewarmed.drop', () => this.#drop(machine));
  }

  async #drop(machine: Prewarmed): Promise<void> {
    if (this.#prewarmed.delete(machine)) await this.#remove(machine);
  }

  /** What cannot be removed now is by the next agent; until then nobody else gets user and slot. */
  async #remove({ vmId, uid, slot }: Prewarmed): Promise<void> {
    const { driver, slots, uids, log } = this.#deps;
    try {
      await driver.reclaim(vmId);
      await driver.remove(vmId);
      await slots.release(slot);
      uids.release(uid);
    } catch (error) {
      log.error({ vmId, err: toError(error) }, 'prewarmed:removeFailed');
    }
  }
}
