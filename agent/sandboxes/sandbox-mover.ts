import { repeatInBackground } from '../../shared/background.ts';
import type { Hosts } from '../../shared/directory/hosts.ts';
import { isPresent } from '../../shared/directory/hosts.ts';
import { toError } from '../../shared/errors.ts';
import { LIMITS } from '../../shared/limits.ts';
import type { Logger } from '../../shared/log.ts';
import type { HostOrder } from '../../shared/schemas/host.ts';
import type { HostCapacity } from './host-capacity.ts';
import type { MachineDriver } from './machine-driver.ts';
import type { SandboxAdopter } from './sandbox-adopter.ts';
import type { SandboxRegistry } from './sandbox-registry.ts';
import type { CarriedRow } from './moving/carried-sandbox.ts';
import type { HostWatch } from './moving/host-watch.ts';
import type { SandboxCarrier } from './moving/sandbox-carrier.ts';
import type { Place } from './moving/shared-storage.ts';
import { isAtRest } from './moving/taken-sandbox.ts';

export interface SandboxMoverDeps {
  readonly hostId: string;
  readonly carrier: SandboxCarrier;
  readonly watch: HostWatch;
  readonly hosts: Pick<Hosts, 'list'>;
  readonly registry: SandboxRegistry;
  readonly adopter: SandboxAdopter;
  readonly capacity: HostCapacity;
  readonly driver: MachineDriver;
  readonly log: Logger;
}

/** How many sandboxes a host takes at one look, so that others get their share. */
const TAKEN_AT_ONCE_MAX = 4;

/**
 * Moves sandboxes between the hosts of one storage. Each host looks by itself: a drained one gives its
 * resting sandboxes up, the others take what was given up and what lost hosts had. Nobody assigns
 * them: of several hosts that reach for one, the storage lets one have it.
 */
export class SandboxMover {
  readonly #deps: SandboxMoverDeps;
  #order: HostOrder = 'up';
  #stop: (() => void) | undefined;
  #looking: Promise<void> = Promise.resolve();
  #isClosed = false;
  /** Machines that cannot be read, each reported once. */
  readonly #unread = new Set<string>();

  constructor(deps: SandboxMoverDeps) {
    this.#deps = deps;
  }

  /** Follows the operator's order from now on; the first one lets it begin. */
  follow(order: HostOrder): void {
    this.#order = order;
    this.#stop ??= repeatInBackground('sandbox.move', LIMITS.sandboxMoveLookMs, () => {
      this.#looking = this.#look();
      return this.#looking;
    });
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#stop?.();
    await this.#looking.catch(() => undefined);
    await this.#deps.watch.close();
  }

  async #look(): Promise<void> {
    const { watch, adopter, capacity } = this.#deps;
    if (this.#isClosed) return;
    await watch.beat();
    await adopter.forgetTaken();
    const lost = await watch.lost();
    try {
      if (this.#order === 'drained' && (await this.#hasSuccessor())) await adopter.releaseResting();
      if (this.#order !== 'up' || capacity.load.isLow) return;
      let left = await this.#takeFrom('released', TAKEN_AT_ONCE_MAX);
      for (const { hostId } of lost) left = await this.#takeFrom({ hostId }, left);
    } finally {
      for (const host of lost) host[Symbol.dispose]();
    }
  }

  /** Whether another host takes what this one gives up. */
  async #hasSuccessor(): Promise<boolean> {
    const { hostId, carrier, hosts } = this.#deps;
    return (await hosts.list()).some(
      (entry) =>
        entry.hostId !== hostId &&
        entry.order === 'up' &&
        entry.report.sandboxStorage === carrier.storage.id &&
        isPresent(entry),
    );
  }

  /** @returns how many more may be taken */
  async #takeFrom(place: Place, max: number): Promise<number> {
    const { carrier, adopter } = this.#deps;
    let left = max;
    const vmIds = max > 0 ? await carrier.storage.list(place) : [];
    for (const vmId of vmIds.toSorted(() => Math.random() - 0.5)) {
      if (left === 0 || this.#isClosed || this.#order !== 'up') break;
      if (!(await this.#canTake(vmId, place))) continue;
      if (!(await carrier.storage.take(vmId, place))) continue;
      if (await adopter.adopt(vmId)) left -= 1;
    }
    return left;
  }

  async #canTake(vmId: string, place: Place): Promise<boolean> {
    const { carrier, driver, registry, log } = this.#deps;
    const directory = carrier.storage.directoryOf(vmId, place);
    try {
      const carried = await carrier.read(directory, vmId);
      // Without it the creation was not over, or nobody's: its own host removes it.
      if (carried === undefined) return false;
      const { row } = carried;
      if (!this.#hasRoom(row) || registry.has(row.id)) return false;
      return (await driver.canTake?.(directory, row.config)) === true;
    } catch (error) {
      const isNew = !this.#unread.has(directory);
      if (isNew) log.error({ vmId, err: toError(error) }, 'sandbox:cannotBeTaken');
      this.#unread.add(directory);
      return false;
    }
  }

  /** A sandbox that ran is started at once; one at rest could be, on an empty host. */
  #hasRoom({ state, config }: CarriedRow): boolean {
    const { capacity } = this.#deps;
    return isAtRest(state) ? capacity.couldHold(config) : capacity.canHold(config);
  }
}
