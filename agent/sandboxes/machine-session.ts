import { toError } from '../../shared/errors.ts';
import type { FairTurns } from '../queues/fair-turns.ts';
import type { SandboxRow } from '../journal/sandbox-journal.ts';
import type { SlotPool } from '../network/slot-pool.ts';
import type { Machine, MachineDriver } from './machine-driver.ts';
import { machineSpec } from './sandbox-row.ts';
import { StartClock } from './start-clock.ts';

export interface MachineSessionDeps {
  readonly driver: MachineDriver;
  readonly slots: SlotPool;
  readonly boots: FairTurns;
  /** Cheaper than a boot, so more of them at once. */
  readonly resumes: FairTurns;
}

/** From one start to the end of its machine; what comes late from a former one is told by it. */
export class MachineSession {
  readonly clock: StartClock;
  machine: Machine | undefined;
  readonly #abort = new AbortController();
  /** Settles when nothing boots or resumes any more. */
  #up: Promise<unknown> = Promise.resolve();

  constructor(clock = new StartClock()) {
    this.clock = clock;
  }

  /**
   * Boots or resumes a machine, as the state of the row says, when it is its turn.
   * @param turnCame called then
   * @throws BootError, or what `abort` was given
   */
  bringUp(row: SandboxRow, deps: MachineSessionDeps, turnCame: () => void): Promise<Machine> {
    const up = this.#bringUp(row, deps, turnCame);
    this.#up = up.catch(toError);
    return up;
  }

  /** What boots or resumes is ended; what runs goes on. */
  abort(reason: Error): void {
    this.#abort.abort(reason);
  }

  /** As `abort`; resolves when this process has nothing to do with a machine any more. */
  async leave(reason: string): Promise<void> {
    this.abort(new Error(reason));
    await this.#up;
    this.machine?.detach();
  }

  async #bringUp(
    row: SandboxRow,
    { driver, slots, boots, resumes }: MachineSessionDeps,
    turnCame: () => void,
  ): Promise<Machine> {
    const { signal } = this.#abort;
    const isPaused = row.state === 'pending_resume';
    const turn = await (isPaused ? resumes : boots).acquire(row.accountId, signal);
    try {
      this.clock.end('queued');
      turnCame();
      const spec = await machineSpec(row, slots);
      if (!isPaused) {
        // The disk is about to change: what is left of a checkpoint would not fit it any more.
        await driver.discardCheckpoint(row.vmId);
        signal.throwIfAborted();
        await driver.prepare(row);
      }
      this.machine = await (isPaused ? driver.resume(spec, signal) : driver.start(spec, signal));
      return this.machine;
    } finally {
      turn.release();
    }
  }
}
