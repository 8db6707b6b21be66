import { repeatUntilStopped } from '../../shared/background.ts';
import { ignoring, toError } from '../../shared/errors.ts';
import { SANDBOX_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import type { StorageWatch } from '../../shared/storage-watch.ts';
import type { SharedBases } from '../machines/driver.ts';
import type { HostWatch } from './moving/host-watch.ts';
import type { MachineFolder, SharedStorage } from './moving/shared-storage.ts';

export interface BaseEvictionDeps {
  readonly bases: SharedBases;
  readonly shared: SharedStorage;
  readonly watch: Pick<HostWatch, 'showLinks' | 'withoutLinks'>;
  /** Watches the shared storage, too: removing copies frees space there and nowhere else. */
  readonly storage: Pick<StorageWatch, 'spaceOf' | 'reserveBytes'>;
  /** How long a copy is kept that no machine needs. */
  readonly keepMs: number;
  readonly log: Logger;
}

/** Evicts before other work suffers, which is refused only below the reserve itself. */
const RESERVES_FREE = 2;

/**
 * Removes copies of images, from storage that hosts share, that no machine's disk stands on: those
 * that none has needed for long, and while space is short the longest unused one. The count of
 * links tells which these are (decision 0084), once every machine certainly has its link. Machines
 * of former versions had none: each host links its own when it starts, and then shows that it has;
 * a host links a machine before it takes it over, and any host links those that no host owns.
 */
export class BaseEviction {
  readonly #deps: BaseEvictionDeps;
  #hasLinks = false;
  /** The hosts that it waited for last; each list is logged once. */
  #waitsFor = '';
  #stop: () => Promise<void> = () => Promise.resolve();

  constructor(deps: BaseEvictionDeps) {
    this.#deps = deps;
  }

  start(): void {
    this.#stop = repeatUntilStopped('base.evict', SANDBOX_LIMITS.sandboxBasesLookMs, () =>
      this.evict(),
    );
  }

  close(): Promise<void> {
    return this.#stop();
  }

  /**
   * Gives each machine of this host its link, and shows it; what fails is logged and repeated
   * later.
   */
  async keepOwn(): Promise<void> {
    if (this.#hasLinks) return;
    try {
      await this.#keepAll();
    } catch (error) {
      return this.#deps.log.warn({ err: toError(error) }, 'base:keepFailed');
    }
    this.#hasLinks = true;
    this.#deps.watch.showLinks();
  }

  /** Looks once for copies to remove. @throws Error when the storage cannot be read */
  async evict(): Promise<void> {
    const { bases, keepMs, log } = this.#deps;
    await this.keepOwn();
    // In this order: a host that takes a machine from there from now on gives it its link before.
    if (await this.#waits()) return;
    await this.#keepAll('released');
    const oldest = Date.now() - keepMs;
    const isTight = this.#isTight;
    for (const [index, { name, unusedSinceMs }] of (await bases.unused()).entries()) {
      if (unusedSinceMs >= oldest && !(isTight && index === 0)) break;
      await bases.remove(name);
      log.info({ copy: name, isTight }, 'base:evicted');
    }
  }

  /** Whether a host may still have machines without links. */
  async #waits(): Promise<boolean> {
    const waitsFor = (await this.#deps.watch.withoutLinks()).join(' ');
    const isNew = waitsFor !== this.#waitsFor;
    this.#waitsFor = waitsFor;
    if (waitsFor !== '' && isNew) this.#deps.log.info({ waitsFor }, 'base:evictionWaits');
    return waitsFor !== '';
  }

  async #keepAll(folder?: MachineFolder): Promise<void> {
    const { bases, shared } = this.#deps;
    for (const vmId of await shared.list(folder)) {
      await bases.keep(shared.directoryOf(vmId, folder)).catch(ignoring('ENOENT'));
    }
    await shared.check(); // Where nothing is mounted, nothing is found.
  }

  get #isTight(): boolean {
    const { storage, shared } = this.#deps;
    const space = storage.spaceOf(shared.paths.directory);
    return space !== undefined && space.freeBytes < storage.reserveBytes * RESERVES_FREE;
  }
}
