import { runInBackground } from '../../shared/background.ts';
import type { Logger } from '../../shared/log.ts';
import { toError } from '../../shared/errors.ts';
import { isAlive } from '../../shared/process-id.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import { failpoint } from '../system/failpoint.ts';
import type { Machine, MachineEnd, MachineOrigin } from '../sandboxes/machine-driver.ts';
import type { GuestChannel } from '../guest-link/guest-channel.ts';
import { GuestUnavailableError } from '../guest-link/guest-errors.ts';
import type { LiveMachine } from './memory/checkpoint.ts';
import {
  howItEnded,
  type Observed,
  recordKill,
  recordObserved,
  type StopRequest,
} from './machine-end.ts';
import { continueMachine, statusOf } from './memory/machine-state.ts';
import { MonitorWatch } from './qemu/monitor-watch.ts';
import { type QmpClient, QmpUnavailableError } from './qemu/qmp-client.ts';
import { type MachineIdentity, runPaths } from './qemu/shim.ts';
import { SocketGuestLink } from './socket-guest-link.ts';
import type { Template } from './memory/template.ts';
import type { VmCgroup } from './qemu/vm-cgroup.ts';

/** A guest leaves half of its grace time to its processes, the rest to its disk and itself. */
const PROCESS_SHARE = 0.5;
/** A guest that takes longer for its first word is asked again, on a new connection. */
const GUEST_OPEN_MS = 10_000;
/** The reason of a kill is recorded first, but storage that hangs must not keep it from happening. */
const RECORD_MS_MAX = 2_000;

const OBSERVED: Readonly<Record<string, Observed>> = {
  shutdown: 'guest_shutdown',
  'guest-panicked': 'guest_panic',
};

/** On the way to and from a checkpoint, and for the moment of a fork. */
const EXPECTED: ReadonlySet<string> = new Set(['paused', 'prelaunch', 'inmigrate', 'save-vm']);

interface Parts {
  readonly vmId: string;
  readonly runDir: string;
  readonly identity: MachineIdentity;
  readonly cgroup: VmCgroup;
  /** What its memory began as; undefined when that is not known any more. */
  readonly template: Template | undefined;
  readonly log: Logger;
}

/** A running QEMU, whichever agent started it. */
export class MicrovmMachine implements Machine {
  readonly guest: SocketGuestLink;
  readonly ended: Promise<MachineEnd>;
  origin: MachineOrigin | undefined;
  /** Settles when nothing is left of the checkpoint that it was resumed from. */
  checkpointCleared: Promise<unknown> = Promise.resolve();
  readonly #parts: Parts;
  readonly #monitor: MonitorWatch;
  readonly #settle: (end: MachineEnd) => void;
  readonly #guestReady = Promise.withResolvers<void>();
  #stopRequest: StopRequest | undefined;
  /** Aborted when the machine is not watched any more. */
  readonly #detached = new AbortController();

  constructor(parts: Parts) {
    const { promise, resolve } = Promise.withResolvers<MachineEnd>();
    this.ended = promise;
    this.#settle = resolve;
    this.#parts = parts;
    const paths = runPaths(parts.runDir);
    this.guest = new SocketGuestLink(paths.guest, GUEST_OPEN_MS, this.#guestReady.promise);
    this.#monitor = new MonitorWatch(paths.monitor, (status, isNews) =>
      this.#handleStopped(status, isNews),
    );
    runInBackground('machine.watch', () => this.#watch());
  }

  get pid(): number {
    return this.#parts.identity.machine.pid;
  }

  async stop(graceMs: number): Promise<MachineEnd> {
    this.#stopRequest ??= {};
    this.#askGuest(graceMs).catch(() => undefined); // Time decides, whatever it says.
    if (!(await settledWithin(this.ended, graceMs))) {
      this.#stopRequest = { forcedAfterMs: graceMs };
      await this.#parts.cgroup.killMachine();
    }
    return this.ended;
  }

  async kill(why = 'the host ended the virtual machine'): Promise<MachineEnd> {
    await this.killProcess(why);
    return this.ended;
  }

  /** As `kill`; resolves when QEMU is gone, before it is known how it ended. */
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
    this.#monitor.close();
  }

  /** The monitor of a machine that has just been started, as soon as it answers. */
  monitor(signal: AbortSignal): Promise<QmpClient> {
    return this.#monitor.ready(signal);
  }

  /** Opens the channel to the guest; before this a machine that is restored is asked nothing. */
  letGuestTalk(): void {
    this.#guestReady.resolve();
  }

  /** What a pause or a fork works on. @throws MachineFault when monitor or guest do not answer now */
  live(): { machine: LiveMachine; channel: GuestChannel; template: Template } {
    const { client } = this.#monitor;
    const { channel } = this.guest;
    const { template } = this.#parts;
    if (client === undefined) throw new QmpUnavailableError('the virtual machine does not answer');
    if (channel === undefined) throw new GuestUnavailableError('the guest does not answer');
    if (template === undefined) throw new Error('what its memory began as is not there any more');
    return { machine: { pid: this.pid, monitor: client, guest: channel }, channel, template };
  }

  /** After a pause or fork that a former agent did not finish; otherwise nothing happens. */
  async continueAfterCrash(): Promise<void> {
    const signal = AbortSignal.timeout(GUEST_OPEN_MS);
    // First the machine: a guest that stands still cannot answer.
    const machine = { pid: this.pid, monitor: await this.#monitor.ready(signal) };
    if (OBSERVED[await statusOf(machine)] !== undefined) return; // `ended` tells.
    await continueMachine(machine);
    await this.guest.call(signal, (channel) => channel.thaw());
  }

  /**
   * A guest that was silent may come back and freeze only then, when nobody waits for that any more:
   * it is thawed on its next channel.
   */
  thawWhenAnswering(): void {
    const thaw = this.guest.call(this.#detached.signal, (channel) => channel.thaw());
    thaw.catch((err: unknown) => {
      if (this.#detached.signal.aborted) return;
      this.#parts.log.warn({ err: toError(err), vmId: this.#parts.vmId }, 'machine:thawFailed');
    });
  }

  async #askGuest(graceMs: number): Promise<void> {
    const processMs = Math.floor(graceMs * PROCESS_SHARE);
    await this.guest.call(AbortSignal.timeout(graceMs), (channel) => channel.shutdown(processMs));
  }

  /** The shim is the last to go, and by then it has written how QEMU ended. */
  async #watch(): Promise<void> {
    const { identity, runDir, cgroup, log } = this.#parts;
    await this.#monitor.run(() => isAlive(identity.keeper));
    if (this.#detached.signal.aborted) return;
    this.guest.close();
    try {
      await cgroup.kill(); // Only if the shim was killed is there anything left.
      this.#settle(await howItEnded(runDir, this.#stopRequest));
    } catch (err) {
      log.error({ err, runDir }, 'machine:readEndFailed');
      this.#settle({
        reason: 'vmm_crashed',
        message: 'how the virtual machine ended is not known',
      });
    }
  }

  async #handleStopped(status: string, isNews: boolean): Promise<void> {
    const { runDir, log } = this.#parts;
    const observed = OBSERVED[status];
    if (observed === undefined) {
      if (!EXPECTED.has(status)) log.warn({ runDir, status }, 'machine:stopped');
      return;
    }
    await failpoint('remember end', () => recordObserved(runDir, observed, { isNews }));
    await failpoint('quit machine', () => this.#monitor.quit());
  }
}
