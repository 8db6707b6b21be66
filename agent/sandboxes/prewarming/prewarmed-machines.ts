import { randomUUID } from 'node:crypto';
import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import { newSandboxId } from '../../../shared/ids.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SlotPool } from '../../network/slots/slot-pool.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { repeatUntilDone } from '../../system/queues/until-done.ts';
import type { BuiltImage } from '../../images/built-image.ts';
import type { MachineDriver, MachineOwner, Shape } from '../../machines/driver.ts';
import type { SandboxImages } from '../holds/sandbox-images.ts';
import type { UidPool } from '../holds/uid-pool.ts';
import { type WantedMachine, WantedMachines } from './wanted-machines.ts';

/**
 * Prewarming waits until no machine has started for this long, so as not to slow callers'
 * sandboxes.
 */
const REST_MS = 200;
const CHECK_EVERY_MS = 1_000;
/** How long prewarming stops after a failure, or while the host is short of something. */
const RETRY_MS = 60_000;
/** Slots that prewarmed VMs leave free for sandboxes. */
const SLOTS_LEFT_MIN = 4;

/** A running machine that no sandbox has taken. */
export interface PrewarmedMachine {
  readonly vmId: string;
  readonly uid: number;
  readonly slot: number;
}

interface Prewarmed extends PrewarmedMachine {
  /** Name of the {@link WantedMachine} that it was made for. */
  readonly name: string;
  readonly snapshotId: string | undefined;
}

export interface PrewarmedMachinesDeps {
  readonly driver: MachineDriver;
  readonly slots: SlotPool;
  readonly uids: UidPool;
  readonly images: SandboxImages;
  /** Copies a snapshot. @returns false when it is gone; parts of the copy may be left */
  readonly copySnapshot: (snapshotId: string, to: MachineOwner) => Promise<boolean>;
  /** How many prewarmed VMs are kept at most. */
  readonly max: number;
  /** Whether a machine is starting. */
  readonly isBusy: () => boolean;
  /** Whether the host is short of memory or storage. */
  readonly isLow: () => boolean;
  readonly log: Logger;
}

/**
 * Keeps prewarmed VMs of the shapes, images and snapshots that were requested last, more of those
 * that are requested often, so that a new sandbox only has to be given its identity. They are not
 * journalled: a sandbox that takes one journals it as its own, and the next agent reclaims those
 * that were not taken.
 */
export class PrewarmedMachines {
  readonly #deps: PrewarmedMachinesDeps;
  readonly #closed = new AbortController();
  readonly #prewarmed = new Set<Prewarmed>();
  readonly #wanted: WantedMachines;
  #timer: NodeJS.Timeout | undefined;
  readonly #ticks = new SerialQueue();
  #retryAt = 0;

  constructor(deps: PrewarmedMachinesDeps) {
    this.#deps = deps;
    this.#wanted = new WantedMachines(deps.max);
  }

  /**
   * Gives the caller a prewarmed VM of this shape and image, if there is one, and prewarms the
   * next.
   * @param image held by the caller; undefined: the default image
   * @param snapshotId of a snapshot on that image; the VM continues from its memory, if it has any
   */
  take(
    shape: Shape,
    image?: Pick<BuiltImage, 'digest'>,
    snapshotId?: string,
  ): PrewarmedMachine | undefined {
    if (this.#deps.max === 0 || this.#closed.signal.aborted) return undefined;
    const beginning = { digest: image?.digest, snapshotId };
    const { name } = this.#wanted.request(shape, beginning, performance.now());
    this.#scheduleTick(REST_MS);
    const machine = [...this.#prewarmed].find((each) => each.name === name);
    if (machine === undefined) return undefined;
    this.#prewarmed.delete(machine);
    this.#deps.images.release(machine.vmId);
    const { vmId, uid, slot } = machine;
    return { vmId, uid, slot };
  }

  /** Removes a prewarmed VM that its taker could not use. */
  async discard(machine: PrewarmedMachine): Promise<void> {
    await this.#remove(machine);
  }

  /** Removes every prewarmed VM. */
  async close(): Promise<void> {
    this.#closed.abort(new Error('the agent ends'));
    clearTimeout(this.#timer);
    await this.#ticks.idle;
    await Promise.all([...this.#prewarmed].map((machine) => this.#evict(machine)));
  }

  /** Removes the prewarmed VMs of a snapshot that is gone. */
  forgetSnapshot(snapshotId: string): void {
    this.#wanted.forgetSnapshot(snapshotId);
    for (const machine of this.#prewarmed) {
      if (machine.snapshotId === snapshotId) {
        runInBackground('prewarmed.evict', () => this.#evict(machine));
      }
    }
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

  /** Evicts VMs that are no longer wanted, and prewarms those that are missing, one by one. */
  async #reconcile(): Promise<void> {
    for (;;) {
      const missing = await this.#evictUnwanted();
      const { slots, isBusy, log } = this.#deps;
      if (missing === undefined || isBusy() || performance.now() < this.#retryAt) return;
      if (slots.freeCount <= SLOTS_LEFT_MIN || this.#closed.signal.aborted) return;
      if (this.#timer !== undefined) return; // A sandbox was requested meanwhile: the next tick waits.
      try {
        if (!(await this.#start(missing))) return;
      } catch (error) {
        this.#retryAt = performance.now() + RETRY_MS;
        if (!this.#closed.signal.aborted)
          log.warn({ err: toError(error) }, 'prewarmed:startFailed');
      }
    }
  }

  /** @returns the kind to prewarm next: one of which none is there, or else too few */
  async #evictUnwanted(): Promise<WantedMachine | undefined> {
    const { slots, isLow } = this.#deps;
    const now = performance.now();
    const isScarce = slots.freeCount < SLOTS_LEFT_MIN || isLow();
    // Without this pause, the memory that an eviction frees would be used to prewarm again.
    if (isScarce) this.#retryAt = now + RETRY_MS;
    const shares = isScarce ? [] : this.#wanted.shares(now);
    const left = new Map(shares.map(({ wanted, count }) => [wanted.name, count]));
    for (const machine of this.#prewarmed) {
      const count = left.get(machine.name) ?? 0;
      if (count === 0) await this.#evict(machine);
      else left.set(machine.name, count - 1);
    }
    const lacks = shares.filter(({ wanted }) => (left.get(wanted.name) ?? 0) > 0);
    const none = lacks.find(({ wanted, count }) => left.get(wanted.name) === count);
    return (none ?? lacks[0])?.wanted;
  }

  /** @returns whether the next one may be started at once */
  async #start({ name, shape, digest, snapshotId }: WantedMachine): Promise<boolean> {
    const { driver, slots, uids, images, copySnapshot, log } = this.#deps;
    if (!(await driver.hasTemplate(shape))) return false; // The driver is making the template.
    const begunAt = performance.now();
    const plan = await slots.lease();
    const machine = { vmId: newSandboxId(), uid: uids.take(), slot: plan.index, name, snapshotId };
    const { vmId, uid } = machine;
    // Placeholders, which the sandbox that takes the VM replaces.
    const identity = { machineId: vmId, bootId: randomUUID() };
    const defaults = { environment: {}, directory: '/', user: '' };
    const settings = { hostname: 'prewarmed', ...identity, ...defaults };
    try {
      const spec = { vmId, uid, ...shape, slot: plan, settings, mounts: [] };
      const image = digest === undefined ? undefined : await images.hold(vmId, digest);
      const isThere =
        (digest === undefined || image !== undefined) &&
        (snapshotId === undefined || (await copySnapshot(snapshotId, { vmId, uid })));
      if (!isThere) {
        this.#wanted.forget(name); // Nothing holds the image any more, or the snapshot was deleted.
        await this.#remove(machine);
        return true;
      }
      const { ended } = await driver.prewarm(spec, this.#closed.signal, image);
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
    return true;
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
  async #remove(machine: PrewarmedMachine): Promise<void> {
    const attempt = (): Promise<boolean> => this.#attemptRemoval(machine);
    if (await attempt()) return;
    runInBackground('prewarmed.remove', () => repeatUntilDone(attempt, this.#closed.signal));
  }

  /** @returns whether everything is removed */
  async #attemptRemoval({ vmId, uid, slot }: PrewarmedMachine): Promise<boolean> {
    const { driver, slots, uids, images, log } = this.#deps;
    try {
      await driver.reclaim(vmId);
      await driver.remove(vmId);
      images.release(vmId);
      await slots.release(slot);
      uids.release(uid);
      return true;
    } catch (error) {
      log.error({ vmId, err: toError(error) }, 'prewarmed:removeFailed');
      return false;
    }
  }
}
