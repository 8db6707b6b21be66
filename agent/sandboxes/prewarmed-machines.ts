import { randomUUID } from 'node:crypto';
import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import { newSandboxId } from '../../shared/ids.ts';
import type { Logger } from '../../shared/log.ts';
import type { SlotPool } from '../network/slot-pool.ts';
import { SerialQueue } from '../queues/serial-queue.ts';
import { repeatUntilDone } from '../queues/until-done.ts';
import { type MachineDriver, type Shape, shapeName } from './machine-driver.ts';
import type { UidPool } from './uid-pool.ts';

/**
 * Prewarming waits until no machine has started for this long, so as not to slow callers'
 * sandboxes.
 */
const REST_MS = 200;
const CHECK_EVERY_MS = 1_000;
/** How long prewarming stops after a failure, or while the host is short of something. */
const RETRY_MS = 60_000;
/** How long a shape stays wanted after it was requested last. */
const WANTED_MS = 600_000;
/** Slots that prewarmed VMs leave free for sandboxes. */
const SLOTS_LEFT_MIN = 4;

/** A running machine that no sandbox has taken. */
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
  /** How many prewarmed VMs are kept at most. */
  readonly max: number;
  /** Whether a machine is starting. */
  readonly isBusy: () => boolean;
  /** Whether the host is short of memory or storage. */
  readonly isLow: () => boolean;
  readonly log: Logger;
}

/**
 * Keeps prewarmed VMs of the shapes that were requested last, so that a new sandbox only has to be
 * given its identity. They are not journalled: a sandbox that takes one journals it as its own, and
 * the next agent reclaims those that were not taken.
 */
export class PrewarmedMachines {
  readonly #deps: PrewarmedMachinesDeps;
  readonly #closed = new AbortController();
  readonly #prewarmed = new Set<Prewarmed>();
  /** Wanted shapes by name, the one requested last at the end; at most as many as VMs are kept. */
  readonly #wanted = new Map<string, Wanted>();
  #timer: NodeJS.Timeout | undefined;
  readonly #ticks = new SerialQueue();
  #retryAt = 0;

  constructor(deps: PrewarmedMachinesDeps) {
    this.#deps = deps;
  }

  /** Gives the caller a prewarmed VM of this shape, if there is one, and prewarms the next. */
  take(shape: Shape): PrewarmedMachine | undefined {
    if (this.#deps.max === 0 || this.#closed.signal.aborted) return undefined;
    const name = shapeName(shape);
    this.#want(name, shape);
    const machine = [...this.#prewarmed].find((each) => each.shape === name);
    if (machine !== undefined) this.#prewarmed.delete(machine);
    return machine;
  }

  /** Removes every prewarmed VM. */
  async close(): Promise<void> {
    this.#closed.abort(new Error('the agent ends'));
    clearTimeout(this.#timer);
    await this.#ticks.idle;
    await Promise.all([...this.#prewarmed].map((machine) => this.#evict(machine)));
  }

  #want(name: string, { vcpuCount, memSizeMib }: Shape): void {
    this.#wanted.delete(name);
    this.#wanted.set(name, { shape: { vcpuCount, memSizeMib }, at: performance.now() });
    const [oldest] = this.#wanted.keys();
    if (this.#wanted.size > this.#deps.max && oldest !== undefined) this.#wanted.delete(oldest);
    this.#scheduleTick(REST_MS);
  }

  #scheduleTick(ms: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      runInBackground('prewarmed.tick', () => this.#ticks.add(() => this.#tick()));
    }, ms);
    this.#timer.unref();
  }

  async #tick(): Promise<void> {
    if (this.#closed.signal.aborted) return;
    await this.#reconcile();
    const isDone = this.#wanted.size === 0 || this.#closed.signal.aborted;
    if (!isDone && this.#timer === undefined) this.#scheduleTick(CHECK_EVERY_MS);
  }

  /** Evicts VMs of shapes that are no longer wanted, and prewarms at most one missing shape. */
  async #reconcile(): Promise<void> {
    const { slots, isBusy, isLow, log } = this.#deps;
    const now = performance.now();
    for (const [name, { at }] of this.#wanted) {
      if (now - at > WANTED_MS) this.#wanted.delete(name);
    }
    const isScarce = slots.freeCount < SLOTS_LEFT_MIN || isLow();
    // Without this pause, the memory that an eviction frees would be used to prewarm again.
    if (isScarce) this.#retryAt = now + RETRY_MS;
    const wanted = isScarce ? [] : [...this.#wanted.values()];
    const names = new Set(wanted.map(({ shape }) => shapeName(shape)));
    for (const machine of this.#prewarmed) {
      if (!names.has(machine.shape)) await this.#evict(machine);
    }
    const ready = new Set([...this.#prewarmed].map(({ shape }) => shape));
    const missing = wanted.findLast(({ shape }) => !ready.has(shapeName(shape)));
    if (missing === undefined || isBusy() || now < this.#retryAt) return;
    if (slots.freeCount <= SLOTS_LEFT_MIN) return;
    try {
      await this.#start(missing.shape);
    } catch (error) {
      this.#retryAt = now + RETRY_MS;
      if (!this.#closed.signal.aborted) log.warn({ err: toError(error) }, 'prewarmed:startFailed');
    }
  }

  async #start(shape: Shape): Promise<void> {
    const { driver, slots, uids, log } = this.#deps;
    if (!(await driver.hasTemplate(shape))) return; // The driver is making the template.
    const begunAt = performance.now();
    const plan = await slots.lease();
    const machine = {
      ...{ vmId: newSandboxId(), uid: uids.take(), slot: plan.index },
      shape: shapeName(shape),
    };
    const { vmId, uid } = machine;
    // Placeholders, which the sandbox that takes the VM replaces.
    const identity = { machineId: vmId, bootId: randomUUID() };
    const defaults = { environment: {}, directory: '/', user: '' };
    const settings = { hostname: 'prewarmed', ...identity, ...defaults };
    try {
      const spec = { vmId, uid, ...shape, slot: plan, settings };
      const { ended } = await driver.prewarm(spec, this.#closed.signal);
      this.#prewarmed.add(machine);
      runInBackground('prewarmed.watchEnd', async () => {
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
    if (!this.#prewarmed.has(machine)) return; // A sandbox has taken it, or it was evicted.
    this.#deps.log.warn({ vmId: machine.vmId }, 'prewarmed:ended');
    this.#retryAt = performance.now() + RETRY_MS;
    runInBackground('prewarmed.evict', () => this.#evict(machine));
  }

  async #evict(machine: Prewarmed): Promise<void> {
    if (this.#prewarmed.delete(machine)) await this.#remove(machine);
  }

  /** Resolves after the first attempt; uid and slot stay taken until one succeeds. */
  async #remove(machine: Prewarmed): Promise<void> {
    const attempt = (): Promise<boolean> => this.#attemptRemoval(machine);
    if (await attempt()) return;
    runInBackground('prewarmed.remove', () => repeatUntilDone(attempt, this.#closed.signal));
  }

  /** @returns whether everything is removed */
  async #attemptRemoval({ vmId, uid, slot }: Prewarmed): Promise<boolean> {
    const { driver, slots, uids, log } = this.#deps;
    try {
      await driver.reclaim(vmId);
      await driver.remove(vmId);
      await slots.release(slot);
      uids.release(uid);
      return true;
    } catch (error) {
      log.error({ vmId, err: toError(error) }, 'prewarmed:removeFailed');
      return false;
    }
  }
}
