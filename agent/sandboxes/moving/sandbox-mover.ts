import { repeatUntilStopped } from '../../../shared/background.ts';
import type { Hosts } from '../../../shared/directory/hosts.ts';
import { isPresent } from '../../../shared/directory/hosts.ts';
import { toError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import type { Logger } from '../../../shared/log.ts';
import { isAtRest } from '../../../shared/sandbox-lifecycle.ts';
import { settledWithin } from '../../../shared/settled-within.ts';
import type { HostOrder } from '../../../shared/schemas/host.ts';
import type { HostCapacity } from '../holds/host-capacity.ts';
import type { MachineDriver } from '../../machines/driver.ts';
import type { SandboxTakeover } from './sandbox-takeover.ts';
import type { SandboxEvacuation } from './sandbox-evacuation.ts';
import type { ReleasedSandboxes } from './released-sandboxes.ts';
import type { HostedSandboxes } from '../lifecycle/hosted-sandboxes.ts';
import type { HandoverRow } from './handover-record.ts';
import type { HostWatch } from './host-watch.ts';
import type { HandoverStore } from './handover-store.ts';
import type { MachineFolder } from './shared-storage.ts';
import { LIMITS } from '../../../shared/limits.ts';

export interface SandboxMoverDeps {
  readonly hostId: string;
  readonly handover: HandoverStore;
  readonly watch: HostWatch;
  readonly hosts: Pick<Hosts, 'list'>;
  readonly registry: HostedSandboxes;
  readonly takeover: SandboxTakeover;
  readonly evacuation: SandboxEvacuation;
  readonly released: ReleasedSandboxes;
  readonly capacity: HostCapacity;
  readonly driver: MachineDriver;
  readonly log: Logger;
}

/** How many sandboxes a host takes over at one look, so that others get their share. */
const TAKEOVERS_AT_ONCE_MAX = 4;

/**
 * Moves sandboxes between the hosts of one storage. Each host looks by itself: a drained one
 * releases its resting sandboxes, the others take over released ones and those of lost hosts.
 * Nobody assigns them: of several hosts that reach for one, the storage lets one have it.
 */
export class SandboxMover {
  readonly #deps: SandboxMoverDeps;
  readonly #stops: (() => Promise<void>)[] = [];
  #order: HostOrder = 'up';
  /** Whether a drained host has found others that may take its sandboxes. */
  #hasOthers = true;
  /** When this host last told the directory its figures, by `performance.now()`. */
  #toldAt = performance.now();
  /** How often this host was silent for so long that others may have taken its sandboxes. */
  #silences = 0;
  /** After how many of them the storage has told which sandboxes this host still has. */
  #silencesKnown = 0;
  #isClosed = false;
  /** Whether this host takes over no further sandbox, since it goes down. */
  #takesNothingOver = false;
  /** The present look, or the last one. */
  #looking: Promise<void> = Promise.resolve();
  /** Machines that cannot be read, each reported once. */
  readonly #unread = new Set<string>();

  constructor(deps: SandboxMoverDeps) {
    this.#deps = deps;
  }

  /**
   * Follows the operator's order, heard just now; the first one lets it begin.
   * @param toldAt no later than the age of its figures in the directory tells: by that age others
   *   decide whether to take its sandboxes, so it must not count a silence as shorter than they do
   */
  follow(order: HostOrder, toldAt: number): void {
    if (performance.now() - this.#toldAt > LIMITS.hostTtlMs) this.#silences += 1;
    this.#toldAt = toldAt;
    this.#order = order;
    if (order !== 'drained') this.#hasOthers = true;
    if (order !== 'drained') this.#deps.released.forgetFailures();
    if (this.#stops.length > 0) return;
    const everyMs = SANDBOX_LIMITS.sandboxMoveLookMs;
    this.#stops.push(
      repeatUntilStopped('sandbox.move', everyMs, async () => {
        this.#looking = this.#look();
        await this.#looking;
      }),
      repeatUntilStopped('sandbox.leaveTaken', everyMs, () => this.#leavePublished()),
    );
  }

  /**
   * Takes over no sandbox from now on, and retries no failed takeover. The host still shows that it
   * is alive. Resolves once the takeovers in progress have ended, or have not in time.
   */
  async stopTakeovers(): Promise<void> {
    this.#takesNothingOver = true;
    await settledWithin(this.#looking, SANDBOX_LIMITS.sandboxTakenMsMax);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all(this.#stops.map((stop) => stop()));
    await this.#deps.watch.close();
  }

  /** How many sandboxes of a drained host stay there, since no other host takes them. */
  get notTakenOver(): number {
    return this.#hasOthers ? this.#deps.released.untaken : this.#deps.evacuation.count;
  }

  async #look(): Promise<void> {
    const { watch, takeover, evacuation, released } = this.#deps;
    if (this.#isClosed) return;
    const silences = this.#silences;
    await watch.beat();
    await evacuation.leaveTakenOver();
    this.#silencesKnown = silences;
    if (!this.#takesNothingOver) await released.withdrawUntaken();
    await using lost = await watch.lost();
    if (this.#order === 'drained') await this.#evacuate();
    else if (!this.#takesNothingOver) await takeover.repeatFailed();
    if (this.#mayTakeOver) await this.#takeOverAll(lost.hostIds);
  }

  /**
   * After a silence: this host was frozen, or cut off. It may be shut out of the storage by now,
   * and its machines are to end all the same.
   */
  async #leavePublished(): Promise<void> {
    if (this.#silences > this.#silencesKnown) await this.#deps.evacuation.leavePublished();
  }

  async #evacuate(): Promise<void> {
    const { takeover, evacuation, log } = this.#deps;
    const had = this.#hasOthers;
    this.#hasOthers = await this.#findsOthers();
    if (this.#hasOthers) {
      // A drain may be cancelled at any moment, and the list may be long.
      const isWanted = (): boolean => this.#order === 'drained' && !this.#isClosed;
      await takeover.releaseAllFailed(isWanted);
      await evacuation.releaseResting(isWanted);
    } else if (had) log.warn({ sandboxes: evacuation.count }, 'sandbox:noOtherHost');
  }

  async #takeOverAll(lost: readonly string[]): Promise<void> {
    const { capacity } = this.#deps;
    if (capacity.load.isLow) return;
    let left = await this.#takeOverFrom('released', TAKEOVERS_AT_ONCE_MAX);
    for (const hostId of lost) left = await this.#takeOverFrom({ hostId }, left);
  }

  /** Whether another host is up that may take over what this one releases. */
  async #findsOthers(): Promise<boolean> {
    const { hostId, handover, hosts } = this.#deps;
    return (await hosts.list()).some(
      (entry) =>
        entry.hostId !== hostId &&
        entry.order === 'up' &&
        entry.report.sandboxStorage === handover.storage.id &&
        isPresent(entry),
    );
  }

  /** @returns how many more may be taken over */
  async #takeOverFrom(folder: MachineFolder, max: number): Promise<number> {
    const { handover, takeover } = this.#deps;
    let left = max;
    const vmIds = max > 0 ? await handover.storage.list(folder) : [];
    for (const vmId of vmIds.toSorted(() => Math.random() - 0.5)) {
      if (left === 0 || !this.#mayTakeOver) break;
      if (!(await this.#canTakeOver(vmId, folder))) continue;
      if (!(await handover.storage.take(vmId, folder))) continue;
      if (await takeover.takeOver(vmId)) left -= 1;
    }
    return left;
  }

  get #mayTakeOver(): boolean {
    return this.#order === 'up' && !this.#isClosed && !this.#takesNothingOver;
  }

  async #canTakeOver(vmId: string, folder: MachineFolder): Promise<boolean> {
    const { handover, driver, registry, takeover, log } = this.#deps;
    if (takeover.leavesAlone(vmId)) return false;
    const directory = handover.storage.directoryOf(vmId, folder);
    try {
      const record = await handover.read(directory, vmId);
      // Without it the creation was not over, or nobody's: its own host removes it.
      if (record === undefined) return false;
      const { row } = record;
      if (!this.#hasRoom(row) || registry.has(row.id)) return false;
      if ((await driver.canTake?.(directory, row.config)) !== true) return false;
      await driver.bases?.keep(directory); // Each machine of a host has its link.
      return true;
    } catch (error) {
      const isNew = !this.#unread.has(directory);
      if (isNew) log.error({ vmId, err: toError(error) }, 'sandbox:cannotBeTaken');
      this.#unread.add(directory);
      return false;
    }
  }

  /** A sandbox that ran is started at once; one at rest could be, on an empty host. */
  #hasRoom({ state, config }: HandoverRow): boolean {
    const { capacity } = this.#deps;
    return isAtRest(state) ? capacity.couldHold(config) : capacity.canHold(config);
  }
}
