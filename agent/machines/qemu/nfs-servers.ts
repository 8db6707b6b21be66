import { Backoff } from '../../../shared/backoff.ts';
import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import { MACHINE_LIMITS } from '../limits.ts';
import { SYSTEM_LIMITS } from '../../system/limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { MachineSpec } from '../driver.ts';

const LOOK_MS = {
  min: MACHINE_LIMITS.nfsServerLookMs,
  max: SYSTEM_LIMITS.removalRetryMsMax,
} as const;

interface Watch {
  readonly abort: AbortController;
  /** Resolves when no server is being started any more; never rejects. */
  readonly stopped: Promise<void>;
}

/**
 * Looks after the NFS servers of machines that run. A server that fails is started again by the
 * process that keeps it (serve-disks.c); when that process is gone, as after a kill by the kernel,
 * it is started here.
 */
export class NfsServers {
  readonly #serve: (spec: MachineSpec) => Promise<void>;
  readonly #log: Logger;
  readonly #watches = new Map<string, Watch>();

  /** @param serve has the server of a machine run; idempotent */
  constructor(serve: (spec: MachineSpec) => Promise<void>, log: Logger) {
    this.#serve = serve;
    this.#log = log;
  }

  /** Begins to look after a machine whose server runs. @param ended when the machine has ended */
  watch(spec: MachineSpec, ended: Promise<unknown>): void {
    if (spec.mounts.length === 0) return;
    const abort = new AbortController();
    const watch = { abort, stopped: this.#look(spec, abort.signal) };
    this.#watches.set(spec.vmId, watch);
    runInBackground('mounts.watch', async () => {
      await ended;
      abort.abort();
    });
  }

  /**
   * Looks after a machine no longer.
   * @returns when no server is being started any more, in whose control group it would be; never
   *   rejects
   */
  async leave(vmId: string): Promise<void> {
    const watch = this.#watches.get(vmId);
    watch?.abort.abort();
    await watch?.stopped;
    if (this.#watches.get(vmId) === watch) this.#watches.delete(vmId);
  }

  /** Looks after no machine any more; the next agent does. */
  close(): void {
    for (const { abort } of this.#watches.values()) abort.abort();
  }

  async #look(spec: MachineSpec, signal: AbortSignal): Promise<void> {
    for (const backoff = new Backoff(LOOK_MS); ;) {
      await backoff.pause({ signal, ref: false });
      if (signal.aborted) return;
      try {
        await this.#serve(spec);
        backoff.reset();
      } catch (error) {
        this.#log.warn({ vmId: spec.vmId, err: toError(error) }, 'mounts:serveFailed');
      }
    }
  }
}
