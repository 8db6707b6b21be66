import { Backoff } from '../../shared/backoff.ts';
import { runInBackground } from '../../shared/background.ts';
import { toError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log.ts';
import { isAlive } from '../../shared/process-id.ts';
import { settledWithin } from '../../shared/settled-within.ts';
import type { MachineCgroup } from '../machines/machine-cgroup.ts';
import { readEnd, recordKill, type StopRequest } from '../machines/machine-end.ts';
import type { MachineIdentity } from '../machines/shim-files.ts';
import { SocketGuestLink } from '../machines/socket-guest-link.ts';
import type { Machine, MachineEnd, MachineOrigin } from '../sandboxes/machine-driver.ts';
import { CONTAINER } from './runc-host.ts';

/** A guest leaves half of its grace time to its processes, the rest to its disk and itself. */
const PROCESS_SHARE = 0.5;
/** A guest that takes longer for its first word is asked again, on a new connection. */
const GUEST_OPEN_MS = 10_000;
/** The reason of a kill is recorded first, but storage that hangs must not keep it from happening. */
const RECORD_MS_MAX = 2_000;
/** How often to look whether it has ended: soon after its guest hung up, then ever more rarely. */
const LOOK_MS = { min: 2, max: 1_000 } as const;

interface Parts {
  readonly runDir: string;
  readonly socket: string;
  readonly identity: MachineIdentity;
  readonly cgroup: MachineCgroup;
  readonly log: Logger;
}

/** A running container, whichever agent started it. */
export class RuncMachine implements Machine {
  readonly guest: SocketGuestLink;
  readonly ended: Promise<MachineEnd>;
  origin: MachineOrigin | undefined;
  /** Number of the slot that this agent has linked it to. */
  connectedTo: number | undefined;
  readonly #parts: Parts;
  readonly #settle: (end: MachineEnd) => void;
  #stopRequest: StopRequest | undefined;
  /** Aborted when it is not watched any more. */
  readonly #detached = new AbortController();

  constructor(parts: Parts) {
    const { promise, resolve } = Promise.withResolvers<MachineEnd>();
    this.ended = promise;
    this.#settle = resolve;
    this.#parts = parts;
    this.guest = new SocketGuestLink(parts.socket, GUEST_OPEN_MS);
    runInBackground('container.watch', () => this.#watch());
  }

  /** Its first process, on the host. */
  get pid(): number {
    return this.#parts.identity.machine.pid;
  }

  get cgroup(): MachineCgroup {
    return this.#parts.cgroup;
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

  async kill(why = 'the host ended the container'): Promise<MachineEnd> {
    const { cgroup, runDir, log } = this.#parts;
    const recorded = recordKill(runDir, why).catch((err: unknown) => {
      log.warn({ err: toError(err), runDir }, 'machine:killNotRecorded');
    });
    await settledWithin(recorded, RECORD_MS_MAX);
    await cgroup.killMachine();
    return this.ended;
  }

  detach(): void {
    this.#detached.abort();
    this.guest.close();
  }

  async #askGuest(graceMs: number): Promise<void> {
    const processMs = Math.floor(graceMs * PROCESS_SHARE);
    await this.guest.call(AbortSignal.timeout(graceMs), (channel) => channel.shutdown(processMs));
  }

  /** The shim is the last to go, and by then it has written how the container ended. */
  async #watch(): Promise<void> {
    const { identity, runDir, cgroup, log } = this.#parts;
    await this.#untilEnded();
    if (this.#detached.signal.aborted) return;
    this.guest.close();
    try {
      await cgroup.kill(); // Only if the shim was killed is there anything left.
      this.#settle(await readEnd(runDir, this.#stopRequest, CONTAINER));
    } catch (err) {
      log.error({ err, runDir, pid: identity.machine.pid }, 'machine:endUnknown');
      this.#settle({ reason: 'vmm_crashed', message: 'how the container ended is not known' });
    }
  }

  async #untilEnded(): Promise<void> {
    const { signal } = this.#detached;
    const { keeper } = this.#parts.identity;
    const backoff = new Backoff(LOOK_MS);
    let woken = Promise.withResolvers<void>();
    this.guest.on('closed', () => {
      backoff.reset();
      woken.resolve();
    });
    signal.addEventListener('abort', () => woken.resolve(), { once: true });
    while (!signal.aborted && isAlive(keeper)) {
      const isWoken = await settledWithin(woken.promise, backoff.nextMs());
      if (isWoken) woken = Promise.withResolvers();
    }
  }
}
