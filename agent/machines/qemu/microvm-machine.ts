import { toError } from '../../../shared/errors.ts';
import { isAlive, type ProcessId } from '../../../shared/process-id.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { GuestChannel } from '../guest-link/guest-channel.ts';
import { GuestUnavailableError } from '../guest-link/guest-errors.ts';
import { SLOT_TAP } from '../../network/slots/slot.ts';
import { SupervisedMachine, type MachineParts } from '../shim/supervised-machine.ts';
import { type Observed, recordObserved } from '../shim/machine-end.ts';
import { runPaths } from '../shim/shim-files.ts';
import { GUEST_OPEN_MS, SocketGuestLink } from '../shim/socket-guest-link.ts';
import type { LiveMachine } from './memory/checkpoint.ts';
import { continueMachine, statusOf } from './memory/machine-state.ts';
import type { Template } from './memory/template.ts';
import { MonitorWatch } from './process/monitor-watch.ts';
import { type QmpClient, QmpUnavailableError } from './process/qmp-client.ts';

const GUEST_ENDS: Readonly<Record<string, Observed>> = {
  shutdown: { reason: 'guest_shutdown' },
  // Root has put the machine to sleep (ACPI S3), and nothing here wakes one.
  suspended: { reason: 'guest_shutdown' },
  'guest-panicked': { reason: 'guest_panic' },
};

/**
 * States of QEMU from which a machine continues: those of a pause, a resume or a fork, and the wait
 * for free space, which MonitorWatch ends.
 */
const PASSING: ReadonlySet<string> = new Set([
  ...['running', 'paused', 'prelaunch', 'inmigrate', 'save-vm', 'io-error'],
]);

/**
 * How a machine has ended that QEMU keeps in a state, or undefined when it has not. From all states
 * that are not listed nothing but a reset leads on, such as `internal-error`, into which root in a
 * guest brings a QEMU by an instruction that KVM cannot emulate.
 */
const endIn = (state: string): Observed | undefined =>
  PASSING.has(state) ? undefined : (GUEST_ENDS[state] ?? { reason: 'vmm_crashed', state });

interface VmParts extends MachineParts {
  readonly vmId: string;
  /** Finds the template that its memory started from. @throws Error when that cannot be read */
  readonly template: () => Promise<Template>;
}

/** A running QEMU, whichever agent started it. */
export class MicrovmMachine extends SupervisedMachine {
  /** Resolves when the checkpoint that it was resumed from is removed; never rejects. */
  checkpointRemoved: Promise<unknown> = Promise.resolve();
  readonly #parts: VmParts;
  readonly #monitor: MonitorWatch;
  readonly #openGuest: () => void;

  protected readonly link = { name: SLOT_TAP, isHostEnd: true };

  constructor(parts: VmParts) {
    const paths = runPaths(parts.runDir);
    const { promise: ready, resolve } = Promise.withResolvers<void>();
    super(parts, new SocketGuestLink(paths.guest, { ready }));
    this.#openGuest = resolve;
    this.#parts = parts;
    this.#monitor = new MonitorWatch(
      paths.monitor,
      (status, wasConnected) => this.#handleStopped(status, wasConnected),
      () => this.#correctClock(),
    );
    this.watch();
  }

  override detach(): void {
    super.detach();
    this.#monitor.close();
  }

  /** Resolves with the monitor's client as soon as the monitor answers. */
  monitor(signal: AbortSignal): Promise<QmpClient> {
    return this.#monitor.ready(signal);
  }

  /** Opens the channel to the guest; a restored machine's memory must be complete before. */
  openGuest(): void {
    this.#openGuest();
  }

  /**
   * The parts that a pause or fork needs.
   * @throws MachineFault when monitor or guest do not answer; Error without its template
   */
  async live(): Promise<{ machine: LiveMachine; channel: GuestChannel; template: Template }> {
    const template = await this.#template();
    const { client } = this.#monitor;
    const { channel } = this.guest;
    if (client === undefined) throw new QmpUnavailableError('the virtual machine does not answer');
    if (channel === undefined) throw new GuestUnavailableError('the guest does not answer');
    return { machine: { pid: this.pid, monitor: client, guest: channel }, channel, template };
  }

  /**
   * Continues a machine whose pause or fork a former agent did not finish; otherwise a no-op. A
   * guest that does not answer in time is thawed when it does.
   * @throws Error when QEMU does not answer, or cannot continue it
   */
  async continueAfterCrash(): Promise<void> {
    const signal = AbortSignal.timeout(GUEST_OPEN_MS);
    // The machine first: the guest of a stopped machine cannot answer.
    const machine = { pid: this.pid, monitor: await this.#monitor.ready(signal) };
    // The machine has ended; `ended` will resolve.
    if (endIn(await statusOf(machine)) !== undefined) return;
    await continueMachine(machine);
    await this.guest
      .call(signal, (channel) => channel.thaw())
      .catch((error: unknown) => {
        this.#warnOfThaw(error);
        this.thawWhenAnswering();
      });
  }

  /**
   * Thaws the guest on its next channel: a guest that did not answer in time may receive the
   * request to freeze only later, when nobody waits for it any more.
   */
  thawWhenAnswering(): void {
    const thaw = this.guest.call(this.detached, (channel) => channel.thaw());
    thaw.catch((error: unknown) => {
      if (!this.detached.aborted) this.#warnOfThaw(error);
    });
  }

  #warnOfThaw(error: unknown): void {
    const { log, vmId } = this.#parts;
    log.warn({ err: toError(error), vmId }, 'machine:thawFailed');
  }

  /** The guest's clock stood still with it; a guest that does not answer now is asked again. */
  #correctClock(): void {
    this.guest.channel?.checkClock().catch(() => undefined);
  }

  async #template(): Promise<Template> {
    try {
      return await this.#parts.template();
    } catch (cause) {
      throw new Error('the template that its memory started from cannot be found', { cause });
    }
  }

  protected shimEnded(shim: ProcessId): Promise<void> {
    return this.#monitor.run(() => isAlive(shim));
  }

  async #handleStopped(status: string, wasConnected: boolean): Promise<void> {
    const { runDir, log } = this.#parts;
    const observed = endIn(status);
    if (observed === undefined) return;
    if (observed.reason === 'vmm_crashed') log.error({ runDir, status }, 'machine:stopped');
    await failpoint('remember end', () => recordObserved(runDir, observed, { wasConnected }));
    await failpoint('quit machine', () => this.#monitor.quit());
  }
}
