import { toError } from '../../../shared/errors.ts';
import type { FairTurns } from '../../system/queues/fair-turns.ts';
import type { SandboxRow } from '../../system/journal/sandbox-journal.ts';
import type { SlotPool } from '../../network/slots/slot-pool.ts';
import {
  BootError,
  type Machine,
  type MachineDriver,
  type MachineImage,
} from '../../machines/driver.ts';
import type { SandboxImages } from '../holds/sandbox-images.ts';
import type { SandboxPolicies } from '../holds/sandbox-policies.ts';
import type { SandboxMounts } from '../../machines/attachments.ts';
import { machineSpec } from './sandbox-row.ts';
import { StartClock } from './start-clock.ts';

export interface MachineRunDeps {
  readonly driver: MachineDriver;
  readonly slots: SlotPool;
  readonly images: SandboxImages;
  readonly policies: SandboxPolicies;
  readonly mounts: SandboxMounts;
  readonly boots: FairTurns;
  /** A resume is cheaper than a boot, so more of them may run at once. */
  readonly resumes: FairTurns;
}

/**
 * A run of a sandbox: a start and the machine that came of it, until that ends. Late events of an
 * earlier run name that run, and are recognised by it.
 */
export class MachineRun {
  readonly clock: StartClock;
  machine: Machine | undefined;
  readonly #abort = new AbortController();
  /** Resolves when no boot or resume is under way; never rejects. */
  #starting: Promise<unknown> = Promise.resolve();

  constructor(clock = new StartClock()) {
    this.clock = clock;
  }

  /**
   * Waits for a turn, then boots or resumes the machine, as the row's state says.
   * @param onTurn called when the turn has come
   * @throws BootError; the reason that {@link abort} was given
   */
  start(row: SandboxRow, deps: MachineRunDeps, onTurn: () => void): Promise<Machine> {
    const starting = this.#start(row, deps, onTurn);
    this.#starting = starting.catch(toError);
    return starting;
  }

  /** Aborted when its start is no longer wanted. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Ends a boot or resume that is under way; a running machine is left alone. */
  abort(reason: Error): void {
    this.#abort.abort(reason);
  }

  /** Aborts a start and detaches from a running machine; resolves when both are done. */
  async leave(reason: string): Promise<void> {
    this.abort(new Error(reason));
    await this.#starting;
    this.machine?.detach();
  }

  async #start(
    row: SandboxRow,
    { driver, slots, images, policies, mounts, boots, resumes }: MachineRunDeps,
    onTurn: () => void,
  ): Promise<Machine> {
    const { signal } = this.#abort;
    const isPaused = row.state === 'pending_resume';
    const turn = await (isPaused ? resumes : boots).acquire(row.accountId, signal);
    try {
      this.clock.end('queued');
      onTurn();
      const spec = await machineSpec(row, { slots, policies, mounts });
      if (!isPaused) {
        // A boot changes the disk, and a checkpoint's memory would not match it any more.
        await driver.discardCheckpoint(row.vmId);
        signal.throwIfAborted();
        // Nothing is left of a paused machine that had other disks.
        await mounts.retain(row.id, row.config.mounts ?? []);
        await driver.prepare(row, await imageOf(row, { driver, images }));
      }
      const options = { isHeld: row.hook?.status === 'pending' };
      this.machine = await (isPaused
        ? driver.resume(spec, signal, options)
        : driver.start(spec, signal));
      return this.machine;
    } finally {
      turn.release();
    }
  }
}

/**
 * @returns undefined for the default image, and for a disk that stands without the image
 * @throws BootError when the host lost the image
 */
async function imageOf(
  { id, vmId, image }: SandboxRow,
  { driver, images }: Pick<MachineRunDeps, 'driver' | 'images'>,
): Promise<MachineImage | undefined> {
  if (image === undefined) return undefined;
  const { digest, reference } = image;
  const held = digest === undefined ? undefined : await images.hold(id, digest);
  if (held !== undefined) return held;
  if (!(await driver.needsImage(vmId))) return undefined;
  throw new BootError('boot_failed', `the host does not have its image ${reference} any more`);
}
