import { AppError, toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import { GuestFailure, MachineFault } from '../guest-link/guest-errors.ts';
import { BootError, type MachineSpec } from '../driver.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { SupervisedMachine } from './supervised-machine.ts';
import type { MachineCgroup } from './machine-cgroup.ts';
import { untilRunning } from './until-running.ts';

/** A prewarmed machine that does not answer within this time is replaced by a new one. */
const ADOPT_MS_MAX = 5_000;

interface TableHost {
  readonly bootTimeoutMs: number;
  readonly log: Logger;
}

/** The machines of this agent by id, until they are paused or reclaimed. */
export class MachineTable<M extends SupervisedMachine> {
  readonly #host: TableHost;
  readonly #machines = new Map<string, M>();
  /** Those that wait for a sandbox. */
  readonly #prewarmed = new Set<string>();

  constructor(host: TableHost) {
    this.#host = host;
  }

  find(vmId: string): M | undefined {
    return this.#machines.get(vmId);
  }

  /** @throws MachineFault when it does not run */
  running(vmId: string): M {
    const machine = this.find(vmId);
    if (machine === undefined) throw new MachineFault('the machine is not running');
    return machine;
  }

  add(vmId: string, machine: M): void {
    this.#machines.set(vmId, machine);
  }

  addPrewarmed(vmId: string): void {
    this.#prewarmed.add(vmId);
  }

  remove(vmId: string): void {
    this.#machines.delete(vmId);
    this.#prewarmed.delete(vmId);
  }

  /** Stops watching a machine that is to be reclaimed. */
  detach(vmId: string): void {
    this.find(vmId)?.detach();
    this.remove(vmId);
  }

  /**
   * Starts a machine with `begin`. When that fails, nothing of the machine runs.
   * @param cgroup what to kill then; undefined when `begin` itself leaves nothing that runs
   * @throws BootError; the signal's reason
   */
  async start(
    vmId: string,
    cgroup: MachineCgroup | undefined,
    signal: AbortSignal,
    begin: () => Promise<M>,
  ): Promise<M> {
    try {
      const machine = await begin();
      this.add(vmId, machine);
      return machine;
    } catch (error) {
      if (cgroup !== undefined) await failpoint('kill failed machine', () => cgroup.kill());
      signal.throwIfAborted();
      if (error instanceof BootError) throw error;
      throw new BootError('boot_failed', toError(error).message, { cause: error });
    }
  }

  /**
   * Turns a prewarmed machine into a sandbox's.
   * @returns undefined when there was none, or it failed and was killed
   */
  async adopt(
    spec: MachineSpec,
    signal: AbortSignal,
    configure: (machine: M, limit: AbortSignal) => Promise<void>,
  ): Promise<M | undefined> {
    const { vmId } = spec;
    const machine = this.#prewarmed.delete(vmId) ? this.find(vmId) : undefined;
    if (machine === undefined) return undefined;
    machine.origin = { kind: 'prewarmed', beganAt: performance.now() };
    const soon = AbortSignal.any([signal, AbortSignal.timeout(ADOPT_MS_MAX)]);
    try {
      await untilRunning(this.#host, machine, soon, (limit) => configure(machine, limit));
      return machine;
    } catch (error) {
      this.#host.log.warn({ vmId, err: toError(error) }, 'machine:adoptFailed');
      await machine.cgroup.kill();
      return undefined;
    }
  }
}

/**
 * The error for the caller of a failed fork: a machine that ended or hangs is no fault of the host.
 */
export function toForkError(error: unknown): Error {
  if (!(error instanceof MachineFault || error instanceof GuestFailure)) return toError(error);
  const message = 'the sandbox ended or does not answer now; try again';
  return new AppError('unavailable', message, { cause: error });
}
