import { runInBackground } from '../../shared/background.ts';
import type { Logger } from '../../shared/log.ts';
import { AppError, toError } from '../../shared/errors.ts';
import { isAlive } from '../../shared/process-id.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import { step } from '../system/failpoint.ts';
import type { Machine, MachineEnd, MachineOrigin } from '../sandboxes/machine-driver.ts';
import { GuestProtocolError, GuestUnavailableError } from '../guest-link/guest-errors.ts';
import { type LiveMachine, pauseMachine } from './memory/checkpoint.ts';
import { writtenLayers } from './disk/disk-chain.ts';
import { howItEnded, type Intent, type Observed, rememberObserved } from './machine-end.ts';
import { continueMachine, MachineStateError, statusOf } from './memory/machine-state.ts';
import { MonitorWatch } from './qemu/monitor-watch.ts';
import { type QmpClient, QmpUnavailableError } from './qemu/qmp-client.ts';
import { type MachineIdentity, runPaths } from './qemu/shim.ts';
import { SocketGuestLink } from './socket-guest-link.ts';
import type { Template } from './memory/template.ts';
import type { VmCgroup } from './qemu/vm-cgroup.ts';

/** Half of its grace time a guest leaves to its processes, the rest to its disk and itself. */
const PROCESS_SHARE = 0.5;
/** A guest that takes longer for its first word is asked again, on a new connection. */
const GUEST_OPEN_MS = 10_000;

const OBSERVED: Readonly<Record<string, Observed>> = {
  shutdown: 'guest_shutdown',
  'guest-panicked': 'guest_panic',
};

/** On the way to and from a checkpoint, and for the moment of a fork. */
const EXPECTED: ReadonlySet<string> = new Set(['paused', 'prelaunch', 'inmigrate', 'save-vm']);

/** The machine or its guest ended, is silent, or broke its protocol: no fault of the host. */
const isMachineFault = (error: unknown): boolean =>
  error instanceof MachineStateError ||
  error instanceof QmpUnavailableError ||
  error instanceof GuestUnavailableError ||
  error instanceof GuestProtocolError;

interface Parts {
  readonly runDir: string;
  readonly identity: MachineIdentity;
  readonly cgroup: VmCgroup;
  /** What its memory began as; undefined when that is not known any more. */
  readonly template: Template | undefined;
  readonly checkpointDir: string;
  readonly disksDir: string;
  /** Copies the disk while it stands still, and makes a sandbox of it. */
  readonly fork: (machine: LiveMachine, template: Template, child: Child) => Promise<void>;
  /** Removes what is left of it but for its disk. */
  readonly clear: () => Promise<void>;
  readonly log: Logger;
}

type Child = Parameters<Machine['fork']>[0];

/** A QEMU that runs, whichever agent started it. */
export class MicrovmMachine implements Machine {
  readonly guest: SocketGuestLink;
  readonly ended: Promise<MachineEnd>;
  origin: MachineOrigin | undefined;
  readonly #parts: Parts;
  readonly #monitor: MonitorWatch;
  readonly #settle: (end: MachineEnd) => void;
  readonly #guestReady = Promise.withResolvers<void>();
  #intent: Intent | undefined;
  #isDetached = false;
  /** Settles when nothing is left of the checkpoint that it went on from. */
  #cleared: Promise<unknown> = Promise.resolve();

  constructor(parts: Parts) {
    const { promise, resolve } = Promise.withResolvers<MachineEnd>();
    this.ended = promise;
    this.#settle = resolve;
    this.#parts = parts;
    const paths = runPaths(parts.runDir);
    this.guest = new SocketGuestLink(paths.guest, GUEST_OPEN_MS, this.#guestReady.promise);
    this.#monitor = new MonitorWatch(paths.monitor, (status) => this.#handleStopped(status));
    runInBackground('machine.watch', () => this.#watch());
  }

  async stop(graceMs: number): Promise<MachineEnd> {
    this.#intent ??= { kind: 'stop' };
    this.#askGuest(graceMs).catch(() => undefined); // Time decides, whatever it says.
    if (!(await settledWithin(this.ended, graceMs))) {
      this.#intent = { ...this.#intent, forcedAfterMs: graceMs };
      await this.#parts.cgroup.killMachine();
    }
    return this.ended;
  }

  async kill(): Promise<MachineEnd> {
    this.#intent ??= { kind: 'kill' };
    await this.#parts.cgroup.killMachine();
    return this.ended;
  }

  async pause(): Promise<void> {
    const { checkpointDir, disksDir, cgroup } = this.#parts;
    const { machine, template } = this.#live();
    const disks = await writtenLayers(disksDir);
    await this.#cleared;
    try {
      await pauseMachine(machine, { directory: checkpointDir, template, disks });
    } catch (error) {
      if (error instanceof MachineStateError) await cgroup.killMachine();
      throw error;
    }
    this.detach();
    await this.#parts.clear();
  }

  async goOn(): Promise<void> {
    const signal = AbortSignal.timeout(GUEST_OPEN_MS);
    // First the machine: a guest that stands still cannot answer.
    const machine = { pid: this.pid, monitor: await this.#monitor.ready(signal) };
    if (OBSERVED[await statusOf(machine)] !== undefined) return; // Its end is told by itself.
    await continueMachine(machine);
    await this.guest.call(signal, (channel) => channel.thaw());
  }

  async fork(child: Child): Promise<void> {
    try {
      const { machine, template } = this.#live();
      await this.#parts.fork(machine, template, child);
    } catch (error) {
      if (error instanceof MachineStateError) await this.#parts.cgroup.killMachine();
      if (!isMachineFault(error)) throw error;
      const message = 'the sandbox ended or does not answer now; try again';
      throw new AppError('unavailable', message, { cause: error });
    }
  }

  get pid(): number {
    return this.#parts.identity.machine.pid;
  }

  /** Beside whatever it does: to remove much takes long, and the next pause would have to. */
  clearSpent(clear: () => Promise<void>): void {
    const { log, runDir } = this.#parts;
    this.#cleared = clear().catch((err: unknown) => {
      log.warn({ err: toError(err), runDir }, 'checkpoint:notCleared'); // The next pause does it.
    });
  }

  /** The way to the monitor of a machine that has just been started. */
  monitor(signal: AbortSignal): Promise<QmpClient> {
    return this.#monitor.ready(signal);
  }

  /** The guest of a machine that goes on is asked nothing before it does. */
  letGuestTalk(): void {
    this.#guestReady.resolve();
  }

  /** @throws QmpUnavailableError or GuestUnavailableError when that one does not answer now */
  #live(): { machine: LiveMachine; template: Template } {
    const { client } = this.#monitor;
    const { channel } = this.guest;
    const { template } = this.#parts;
    if (client === undefined) throw new QmpUnavailableError('the virtual machine does not answer');
    if (channel === undefined) throw new GuestUnavailableError('the guest does not answer');
    if (template === undefined) throw new Error('what its memory began as is not there any more');
    return { machine: { pid: this.pid, monitor: client, guest: channel }, template };
  }

  detach(): void {
    this.#isDetached = true;
    this.guest.close();
    this.#monitor.close();
  }

  async #askGuest(graceMs: number): Promise<void> {
    const processMs = Math.floor(graceMs * PROCESS_SHARE);
    await this.guest.call(AbortSignal.timeout(graceMs), (channel) => channel.shutdown(processMs));
  }

  /** The shim is the last to go, and by then it has written how QEMU ended. */
  async #watch(): Promise<void> {
    const { identity, runDir, cgroup, log } = this.#parts;
    await this.#monitor.run(() => isAlive(identity.keeper));
    if (this.#isDetached) return;
    this.guest.close();
    try {
      await cgroup.kill(); // Only if the shim was killed is there anything left.
      this.#settle(await howItEnded(runDir, this.#intent));
    } catch (err) {
      log.error({ err, runDir }, 'machine:endUnknown');
      this.#settle({
        reason: 'vmm_crashed',
        message: 'how the virtual machine ended is not known',
      });
    }
  }

  async #handleStopped(status: string): Promise<void> {
    const observed = OBSERVED[status];
    if (observed === undefined) {
      if (EXPECTED.has(status)) return;
      this.#parts.log.warn({ runDir: this.#parts.runDir, status }, 'machine:stopped');
      return;
    }
    await step('remember end', () => rememberObserved(this.#parts.runDir, observed));
    await step('quit machine', () => this.#monitor.quit());
  }
}
