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
  readEnd,
  type Observed,
  recordKill,
  recordObserved,
  type StopRequest,
} from '../machines/machine-end.ts';
import { continueMachine, statusOf } from './memory/machine-state.ts';
import { MonitorWatch } from './qemu/monitor-watch.ts';
import { type QmpClient, QmpUnavailableError } from './qemu/qmp-client.ts';
import { type MachineIdentity, runPaths } from '../machines/shim-files.ts';
import { SocketGuestLink } from '../machines/socket-guest-link.ts';
import type { Template } from './memory/template.ts';
import type { MachineCgroup } from '../machines/machine-cgroup.ts';

/** The share of the grace time that the guest gives its processes; the rest is for its disk. */
const PROCESS_SHARE = 0.5;
/** How long a guest may take for its first message before a new connection is tried. */
const GUEST_OPEN_MS = 10_000;
/** A kill first waits for its reason to be recorded, but not longer: storage may hang. */
const RECORD_MS_MAX = 2_000;

const OBSERVED: Readonly<Record<string, Observed>> = {
  shutdown: 'guest_shutdown',
  'guest-panicked': 'guest_panic',
};

/** States of QEMU during a pause, a resume or a fork. */
const EXPECTED: ReadonlySet<string> = new Set(['paused', 'prelaunch', 'inmigrate', 'save-vm']);

interface Parts {
  readonly vmId: string;
  readonly runDir: string;
  readonly identity: MachineIdentity;
  readonly cgroup: MachineCgroup;
  /** The template that its memory started from; undefined when it cannot be found. */
  readonly template: Template | undefined;
  readonly log: Logger;
}

/** A running QEMU, whichever agent started it. */
export class MicrovmMachine implements Machine {
  readonly guest: SocketGuestLink;
  readonly ended: Promise<MachineEnd>;
  origin: MachineOrigin | undefined;
  /** Resolves when the checkpoint that it was resumed from is removed; never rejects. */
  checkpointRemoved: Promise<unknown> = Promise.resolve();
  readonly #parts: Parts;
  readonly #monitor: MonitorWatch;
  readonly #settle: (end: MachineEnd) => void;
  readonly #guestReady = Promise.withResolvers<void>();
  #stopRequest: StopRequest | undefined;
  /** Aborted by {@link detach}. */
  readonly #detached = new AbortController();

  constructor(parts: Parts) {
    const { promise, resolve } = Promise.withResolvers<MachineEnd>();
    this.ended = promise;
    this.#settle = resolve;
    this.#parts = parts;
    const paths = runPaths(parts.runDir);
    this.guest = new SocketGuestLink(paths.guest, GUEST_OPEN_MS, this.#guestReady.promise);
    this.#monitor = new MonitorWatch(paths.monitor, (status, wasConnected) =>
      this.#handleStopped(status, wasConnected),
    );
    runInBackground('machine.watch', () => this.#watch());
  }

  get pid(): number {
    return this.#parts.identity.machine.pid;
  }

  async stop(graceMs: number): Promise<MachineEnd> {
    this.#stopRequest ??= {};
    // Only the end of the machine counts, not the guest's answer.
    this.#askGuest(graceMs).catch(() => undefined);
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

  /** As {@link kill}, but resolves when QEMU has ended, before its end was read. */
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

  /** Resolves with the monitor's client as soon as the monitor answers. */
  monitor(signal: AbortSignal): Promise<QmpClient> {
    return this.#monitor.ready(signal);
  }

  /** Opens the channel to the guest; a restored machine's memory must be complete before. */
  openGuest(): void {
    this.#guestReady.resolve();
  }

  /**
   * The parts that a pause or fork needs.
   * @throws MachineFault when monitor or guest do not answer
   */
  live(): { machine: LiveMachine; channel: GuestChannel; template: Template } {
    const { client } = this.#monitor;
    const { channel } = this.guest;
    const { template } = this.#parts;
    if (client === undefined) throw new QmpUnavailableError('the virtual machine does not answer');
    if (channel === undefined) throw new GuestUnavailableError('the guest does not answer');
    if (template === undefined)
      throw new Error('the template that its memory started from cannot be found');
    return { machine: { pid: this.pid, monitor: client, guest: channel }, channel, template };
  }

  /** Continues a machine whose pause or fork a former agent did not finish; otherwise a no-op. */
  async continueAfterCrash(): Promise<void> {
    const signal = AbortSignal.timeout(GUEST_OPEN_MS);
    // The machine first: the guest of a stopped machine cannot answer.
    const machine = { pid: this.pid, monitor: await this.#monitor.ready(signal) };
    // The guest has ended; `ended` will resolve.
    if (OBSERVED[await statusOf(machine)] !== undefined) return;
    await continueMachine(machine);
    await this.guest.call(signal, (channel) => channel.thaw());
  }

  /**
   * Thaws the guest on its next channel: a guest that did not answer in time may receive the
   * request to freeze only later, when nobody waits for it any more.
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

  /** Waits for the end of the shim, which ends last, after it has recorded how QEMU ended. */
  async #watch(): Promise<void> {
    const { identity, runDir, cgroup, log } = this.#parts;
    await this.#monitor.run(() => isAlive(identity.keeper));
    if (this.#detached.signal.aborted) return;
    this.guest.close();
    try {
      await cgroup.kill(); // Something is left only if the shim itself was killed.
      this.#settle(await readEnd(runDir, this.#stopRequest));
    } catch (err) {
      log.error({ err, runDir }, 'machine:readEndFailed');
      this.#settle({
        reason: 'vmm_crashed',
        message: 'it is not known how the virtual machine ended',
      });
    }
  }

  async #handleStopped(status: string, wasConnected: boolean): Promise<void> {
    const { runDir, log } = this.#parts;
    const observed = OBSERVED[status];
    if (observed === undefined) {
      if (!EXPECTED.has(status)) log.warn({ runDir, status }, 'machine:stopped');
      return;
    }
    await failpoint('remember end', () => recordObserved(runDir, observed, { wasConnected }));
    await failpoint('quit machine', () => this.#monitor.quit());
  }
}
