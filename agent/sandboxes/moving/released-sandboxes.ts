import { SANDBOX_LIMITS } from '../limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { MachineDriver } from '../../machines/driver.ts';
import { FailedAttempts } from './failed-attempts.ts';
import type { HandoverStore } from './handover-store.ts';
import type { SandboxTakeover } from './sandbox-takeover.ts';
import type { HostedSandboxes } from '../lifecycle/hosted-sandboxes.ts';

export interface ReleasedSandboxesDeps {
  readonly hostId: string;
  readonly handover: HandoverStore;
  readonly registry: Pick<HostedSandboxes, 'actors'>;
  readonly takeover: Pick<SandboxTakeover, 'takeOver'>;
  readonly driver: Pick<MachineDriver, 'bases'>;
  readonly log: Logger;
}

/**
 * The sandboxes that this host has released. A sandbox that no other host takes over, because none
 * has room or could resume it, is reclaimed: its callers would be told for ever that it moves. A
 * reclaimed sandbox is released again later, after growing pauses.
 */
export class ReleasedSandboxes {
  readonly #deps: ReleasedSandboxesDeps;
  /** By VM id. */
  readonly #inVain = new FailedAttempts(
    { min: SANDBOX_LIMITS.sandboxOfferAgainMs, max: SANDBOX_LIMITS.sandboxOfferAgainMsMax },
    Number.POSITIVE_INFINITY,
  );
  /** Since when each machine lies with nobody, by VM id and `performance.now()`. */
  readonly #since = new Map<string, number>();
  /** When a host was last seen to have taken one. */
  #takenAt = 0;

  constructor(deps: ReleasedSandboxesDeps) {
    this.#deps = deps;
  }

  /** How many nobody took over when they were released last. */
  get inVain(): number {
    return this.#inVain.size;
  }

  /** Whether a sandbox may be released now. */
  isDue(vmId: string): boolean {
    return !this.#inVain.isPausing(vmId);
  }

  /** Forgets the pauses: all may be released at once. */
  forgetFailures(): void {
    for (const vmId of this.#inVain.ids) this.#inVain.forget(vmId);
  }

  /**
   * Reclaims released sandboxes, once no host has taken any over for long enough.
   * @throws Error when the storage cannot be read
   */
  async reclaimUntaken(): Promise<void> {
    const { handover, registry } = this.#deps;
    const released = new Set(await handover.storage.list('released'));
    const now = performance.now();
    for (const vmId of this.#since.keys()) {
      if (released.has(vmId)) continue;
      this.#since.delete(vmId);
      this.#takenAt = now;
    }
    const own = new Set(registry.actors.map(({ row }) => row.vmId));
    for (const vmId of this.#inVain.ids)
      if (!released.has(vmId) && !own.has(vmId)) this.#inVain.forget(vmId);
    for (const vmId of released) {
      const since = this.#since.get(vmId) ?? now;
      this.#since.set(vmId, since);
      if (own.has(vmId)) continue; // This host is not done with giving it up.
      if (now - Math.max(since, this.#takenAt) >= SANDBOX_LIMITS.sandboxOfferMs)
        await this.#reclaimUntaken(vmId);
    }
  }

  async #reclaimUntaken(vmId: string): Promise<void> {
    const { hostId, handover, takeover, driver, log } = this.#deps;
    const directory = handover.storage.directoryOf(vmId, 'released');
    // A record that cannot be read is reported by those that look for what they could take.
    const carried = await handover.read(directory, vmId).catch(() => undefined);
    if (carried?.hostId !== hostId) return;
    await driver.bases?.keep(directory); // Each machine of a host has its link.
    if (!(await handover.storage.take(vmId, 'released'))) return;
    this.#since.delete(vmId);
    this.#inVain.add(vmId);
    log.warn({ sandboxId: carried.row.id, vmId }, 'sandbox:notTaken');
    await takeover.takeOver(vmId);
  }
}
