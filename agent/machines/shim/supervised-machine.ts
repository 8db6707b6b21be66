import { uptime } from 'node:os';
import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import { hostBootId, isAlive, type ProcessId } from '../../../shared/process-id.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { Machine, MachineEnd, MachineOrigin, MachineUsage } from '../driver.ts';
import type { MachineCgroup } from './machine-cgroup.ts';
import {
  isEndKnown,
  type MachineKind,
  readEnd,
  recordKill,
  type StopRequest,
} from './machine-end.ts';
import { readMachineUsage, type UsageInterface } from './machine-usage.ts';
import { type MachineIdentity, readIdentity } from './shim-files.ts';
import type { SocketGuestLink } from './socket-guest-link.ts';

/** The share of the grace time that the guest gives its processes; the rest is for its disk. */
const PROCESS_SHARE = 0.5;
/** A kill first waits for its reason to be recorded, but not longer: storage may hang. */
const RECORD_MS_MAX = 2_000;

/** The parts of a machine on the host. */
export interface MachineParts {
  readonly runDir: string;
  readonly identity: MachineIdentity;
  readonly cgroup: MachineCgroup;
  readonly kind: MachineKind;
  readonly log: Logger;
}

/** A running machine with a shim that outlives the agent, whichever agent started it. */
export abstract class SupervisedMachine implements Machine {
  readonly guest: SocketGuestLink;
  readonly ended: Promise<MachineEnd>;
  origin: MachineOrigin | undefined;
  readonly #parts: MachineParts;
  readonly #settle: (end: MachineEnd) => void;
  readonly #detached = new AbortController();
  #stopRequest: StopRequest | undefined;

  protected constructor(parts: MachineParts, guest: SocketGuestLink) {
    const { promise, resolve } = Promise.withResolvers<MachineEnd>();
    this.ended = promise;
    this.#settle = resolve;
    this.#parts = parts;
    this.guest = guest;
  }

  /** Its first process, on the host. */
  get pid(): number {
    return this.#parts.identity.machine.pid;
  }

  get cgroup(): MachineCgroup {
    return this.#parts.cgroup;
  }

  /** Aborted by {@link detach}. */
  protected get detached(): AbortSignal {
    return this.#detached.signal;
  }

  async stop(graceMs: number): Promise<MachineEnd> {
    this.#stopRequest ??= {};
    // Only the end of the machine counts, not the guest's answer.
    this.#askGuest(graceMs).catch(() => undefined);
    if (!(await settledWithin(this.ended, graceMs))) {
      this.#stopRequest = { forcedAfterMs: graceMs };
      await this.cgroup.killMachine();
    }
    return this.ended;
  }

  async kill(why = `the host ended the ${this.#parts.kind.noun}`): Promise<MachineEnd> {
    await this.killProcess(why);
    return this.ended;
  }

  /** Like {@link kill}, but resolves when its processes have ended, before its end was read. */
  async killProcess(why: string): Promise<void> {
    const { cgroup, runDir, log } = this.#parts;
    const recorded = recordKill(runDir, why).catch((err: unknown) => {
      log.warn({ err: toError(err), runDir }, 'machine:recordKillFailed');
    });
    await settledWithin(recorded, RECORD_MS_MAX);
    await cgroup.killMachine();
  }

  detach(): void {
    this.#detached.abort();
    this.guest.close();
  }

  usage(): Promise<MachineUsage> {
    return readMachineUsage(this.cgroup.machinePath, this.pid, this.link);
  }

  /** Its interface to the network, as {@link pid} sees it. */
  protected abstract readonly link: UsageInterface;

  /** Resolves once its shim has ended, or it is no longer watched. */
  protected abstract shimEnded(shim: ProcessId): Promise<void>;

  /** Begins to wait for its end; for the end of the constructor. */
  protected watch(): void {
    runInBackground('machine.watch', () => this.#watch());
  }

  async #askGuest(graceMs: number): Promise<void> {
    const processMs = Math.floor(graceMs * PROCESS_SHARE);
    await this.guest.call(AbortSignal.timeout(graceMs), (channel) => channel.shutdown(processMs));
  }

  /**
   * Waits for the end of the shim, which ends last, after it has recorded how the machine ended.
   */
  async #watch(): Promise<void> {
    const { identity, runDir, cgroup, kind, log } = this.#parts;
    await this.shimEnded(identity.keeper);
    if (this.detached.aborted) return;
    this.guest.close();
    try {
      await cgroup.kill(); // Something is left only if the shim itself was killed.
      this.#settle(await readEnd(runDir, this.#stopRequest, kind));
    } catch (err) {
      log.error({ err, runDir, pid: this.pid }, 'machine:readEndFailed');
      const message = `it is not known how the ${kind.noun} ended`;
      this.#settle({ reason: 'vmm_crashed', message });
    }
  }
}

/**
 * Takes over a machine that a former agent started.
 * @param watch begins to watch it, if its shim is alive
 * @returns the machine, or how it has ended
 */
export async function recoverMachine<M extends SupervisedMachine>(
  { runDir, cgroup, kind }: Pick<MachineParts, 'runDir' | 'cgroup' | 'kind'>,
  watch: (identity: MachineIdentity) => M | Promise<M>,
): Promise<M | MachineEnd> {
  const identity = await readIdentity(runDir);
  if (identity === undefined) {
    return { reason: 'vmm_crashed', message: `the ${kind.noun} has left no record of itself` };
  }
  if (isAlive(identity.keeper)) return watch(identity);
  if (identity.hostBootId !== hostBootId() && !(await isEndKnown(runDir))) {
    const endedAt = Math.round(Date.now() - uptime() * 1000); // Its end was then at the latest.
    return { reason: 'host_restarted', message: 'the host was restarted', endedAt };
  }
  await cgroup.kill();
  return readEnd(runDir, undefined, kind);
}
