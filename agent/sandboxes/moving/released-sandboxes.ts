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
 * has room or could resume it, is withdrawn: its callers would be told for ever that it moves. A
 * withdrawn sandbox is released again later, after growing pauses.
 */
export class ReleasedSandboxes {
  readonly #deps: ReleasedSandboxesDeps;
  /** By VM id. */
  readonly #untaken = new FailedAttempts(
    { min: SANDBOX_LIMITS.sandboxReleaseAgainMs, max: SANDBOX_LIMITS.sandboxReleaseAgainMsMax },
    Number.POSITIVE_INFINITY,
  );
  /** Since when each machine lies with nobody, by VM id and `performance.now()`. */
  readonly #since = new Map<string, number>();
  /** When a host was last seen to have taken one. */
  #takenOverAt = 0;

  constructor(deps: ReleasedSandboxesDeps) {
    this.#deps = deps;
  }

  /** How many nobody took over when they were released last. */
  get untaken(): number {
    return this.#untaken.size;
  }

  /** Whether a sandbox may be released now. */
  isDue(vmId: string): boolean {
    return !this.#untaken.isPausing(vmId);
  }

  /** Forgets the pauses: all may be released at once. */
  forgetFailures(): void {
    for (const vmId of this.#untaken.ids) this.#untaken.forget(vmId);
  }

  /**
   * Withdraws released sandboxes, once no host has taken any over for long enough.
   * @throws Error when the storage cannot be read
   */
  async withdrawUntaken(): Promise<void> {
    const { handover, registry } = this.#deps;
    const released = new Set(await handover.storage.list('released'));
    const now = performance.now();
    for (const vmId of this.#since.keys()) {
      if (released.has(vmId)) continue;
      this.#since.delete(vmId);
      this.#takenOverAt = now;
    }
    const own = new Set(registry.actors.map(({ row }) => row.vmId));
    for (const vmId of this.#untaken.ids)
      if (!released.has(vmId) && !own.has(vmId)) this.#untaken.forget(vmId);
    for (const vmId of released) {
      const since = this.#since.get(vmId) ?? now;
      this.#since.set(vmId, since);
      if (own.has(vmId)) continue; // This host is not done with releasing it.
      if (now - Math.max(since, this.#takenOverAt) >= SANDBOX_LIMITS.sandboxReleasedMs)
        await this.#withdrawUntaken(vmId);
    }
  }

  async #withdrawUntaken(vmId: string): Promise<void> {
    const { hostId, handover, takeover, driver, log } = this.#deps;
    const directory = handover.storage.directoryOf(vmId, 'released');
    // A record that cannot be read is reported by those that look for what they could take.
    const record = await handover.read(directory, vmId).catch(() => undefined);
    if (record?.hostId !== hostId) return;
    await driver.bases?.keep(directory); // Each machine of a host has its link.
    if (!(await handover.storage.take(vmId, 'released'))) return;
    this.#since.delete(vmId);
    this.#untaken.add(vmId);
    log.warn({ sandboxId: record.row.id, vmId }, 'sandbox:notTaken');
    await takeover.takeOver(vmId);
  }
}
