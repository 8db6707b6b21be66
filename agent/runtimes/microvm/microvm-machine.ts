import { once } from 'node:events';
import type { Logger } from '../../../shared/log.ts';
import { isAlive } from '../../../shared/process-id.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import { step } from '../../step.ts';
import type { Machine, MachineEnd } from '../driver.ts';
import { howItEnded, type Intent, type Observed, rememberObserved } from './machine-end.ts';
import { MonitorWatch } from './monitor-watch.ts';
import { type MachineIdentity, runPaths } from './shim.ts';
import { SocketGuestLink } from './socket-guest-link.ts';
import type { VmCgroup } from './vm-cgroup.ts';

/** Half of its grace time a guest leaves to its processes, the rest to its disk and itself. */
const PROCESS_SHARE = 0.5;
/** A guest that takes longer for its first word is asked again, on a new connection. */
const GUEST_OPEN_MS = 10_000;

const OBSERVED: Readonly<Record<string, Observed>> = {
  shutdown: 'guest_shutdown',
  'guest-panicked': 'guest_panic',
};

interface Parts {
  readonly runDir: string;
  readonly identity: MachineIdentity;
  readonly cgroup: VmCgroup;
  readonly log: Logger;
}

/** A QEMU that runs, whichever agent started it. */
export class MicrovmMachine implements Machine {
  readonly guest: SocketGuestLink;
  readonly ended: Promise<MachineEnd>;
  readonly #parts: Parts;
  readonly #monitor: MonitorWatch;
  readonly #settle: (end: MachineEnd) => void;
  #intent: Intent | undefined;
  #isDetached = false;

  constructor(parts: Parts) {
    const { promise, resolve } = Promise.withResolvers<MachineEnd>();
    this.ended = promise;
    this.#settle = resolve;
    this.#parts = parts;
    const paths = runPaths(parts.runDir);
    this.guest = new SocketGuestLink(paths.guest, GUEST_OPEN_MS);
    this.#monitor = new MonitorWatch(paths.monitor, (status) => this.#handleStopped(status));
    void this.#watch();
  }

  async stop(graceMs: number): Promise<MachineEnd> {
    this.#intent ??= { kind: 'stop' };
    void this.#askGuest(graceMs).catch(() => undefined); // Time decides, whatever it says.
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

  detach(): void {
    this.#isDetached = true;
    this.guest.close();
    this.#monitor.close();
  }

  async #askGuest(graceMs: number): Promise<void> {
    const { guest } = this;
    if (guest.channel === undefined) {
      await once(guest, 'opened', { signal: AbortSignal.timeout(graceMs) });
    }
    await guest.channel?.shutdown(Math.floor(graceMs * PROCESS_SHARE));
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
      this.#parts.log.warn({ runDir: this.#parts.runDir, status }, 'machine:stopped');
      return;
    }
    await step('remember end', () => rememberObserved(this.#parts.runDir, observed));
    await step('quit machine', () => this.#monitor.quit());
  }
}
