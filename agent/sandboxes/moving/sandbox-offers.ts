import { SANDBOX_LIMITS } from '../limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { MachineDriver } from '../../machines/driver.ts';
import { FailedAttempts } from './failed-attempts.ts';
import type { SandboxCarrier } from './sandbox-carrier.ts';
import type { SandboxAdopter } from './sandbox-adopter.ts';
import type { HostedSandboxes } from '../lifecycle/hosted-sandboxes.ts';

export interface SandboxOffersDeps {
  readonly hostId: string;
  readonly carrier: SandboxCarrier;
  readonly registry: Pick<HostedSandboxes, 'actors'>;
  readonly adopter: Pick<SandboxAdopter, 'adopt'>;
  readonly driver: Pick<MachineDriver, 'bases'>;
  readonly log: Logger;
}

/**
 * The sandboxes that this host has given up. Those that no other host takes, because it has no room
 * or could not resume them, come back: callers would be told for ever that they move. They are
 * given up again later, after growing pauses.
 */
export class SandboxOffers {
  readonly #deps: SandboxOffersDeps;
  /** By VM id. */
  readonly #inVain = new FailedAttempts(
    { min: SANDBOX_LIMITS.sandboxOfferAgainMs, max: SANDBOX_LIMITS.sandboxOfferAgainMsMax },
    Number.POSITIVE_INFINITY,
  );
  /** Since when each machine lies with nobody, by VM id and `performance.now()`. */
  readonly #since = new Map<string, number>();
  /** When a host was last seen to have taken one. */
  #takenAt = 0;

  constructor(deps: SandboxOffersDeps) {
    this.#deps = deps;
  }

  /** How many nobody took when they were offered last. */
  get inVain(): number {
    return this.#inVain.size;
  }

  /** Whether a sandbox may be given up now. */
  isDue(vmId: string): boolean {
    return !this.#inVain.isPausing(vmId);
  }

  /** Begins anew: all may be given up at once. */
  forgetFailures(): void {
    for (const vmId of this.#inVain.ids) this.#inVain.forget(vmId);
  }

  /**
   * Takes back what lies there, once no host has taken any for long enough.
   * @throws Error when the storage cannot be read
   */
  async takeBack(): Promise<void> {
    const { carrier, registry } = this.#deps;
    const released = new Set(await carrier.storage.list('released'));
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
        await this.#takeBack(vmId);
    }
  }

  async #takeBack(vmId: string): Promise<void> {
    const { hostId, carrier, adopter, driver, log } = this.#deps;
    const directory = carrier.storage.directoryOf(vmId, 'released');
    // A record that cannot be read is reported by those that look for what they could take.
    const carried = await carrier.read(directory, vmId).catch(() => undefined);
    if (carried?.hostId !== hostId) return;
    await driver.bases?.keep(directory); // Each machine of a host has its link.
    if (!(await carrier.storage.take(vmId, 'released'))) return;
    this.#since.delete(vmId);
    this.#inVain.add(vmId);
    log.warn({ sandboxId: carried.row.id, vmId }, 'sandbox:notTaken');
    await adopter.adopt(vmId);
  }
}
