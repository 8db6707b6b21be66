import { readFile } from 'node:fs/promises';
import { repeatInBackground } from '../../../shared/background.ts';
import type { SandboxCapacity, SandboxResources } from '../../../shared/directory/capacity.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import { needOf } from '../../../shared/directory/sandbox-need.ts';
import type { SandboxConfig } from '../../../shared/schemas/sandbox-record.ts';
import type { StorageWatch } from '../../../shared/storage-watch.ts';
import type { HostOrder } from '../../../shared/schemas/host.ts';
import { MiB } from '../../../shared/units.ts';
import type { UsageMeter } from './usage-meter.ts';

const CHECK_EVERY_MS = 1_000;

export interface HostCapacityOptions {
  readonly hostId: string;
  /** Resources for all running sandboxes together. */
  readonly total: SandboxResources;
  /** Memory that must stay available on the host, even if the total is not used up. */
  readonly memoryReserveMib: number;
  readonly storage: StorageWatch;
  /** Where control nodes reserve capacity before they place a sandbox here. */
  readonly directory: SandboxCapacity;
  /** Measures for how long accounts hold capacity here. */
  readonly meter?: UsageMeter;
  readonly log: Logger;
}

type Config = Pick<SandboxConfig, 'memSizeMib' | 'vcpuCount'>;

/** A sandbox that capacity is held for. */
export interface Holder {
  readonly id: string;
  readonly accountId: string;
  readonly config: Config;
}

/**
 * The capacity that this host's sandboxes hold. The host has the last word: the directory holds a
 * copy by which control nodes place sandboxes.
 */
export class HostCapacity {
  readonly #options: HostCapacityOptions;
  readonly #held = new Map<string, SandboxResources>();
  readonly #stop: () => void;
  #availableMib = Number.POSITIVE_INFINITY;
  /** Whether the directory may differ: it has a former agent's entries, or missed some of ours. */
  #isCopyStale = true;
  #order: HostOrder = 'up';

  constructor(options: HostCapacityOptions) {
    this.#options = options;
    this.#stop = repeatInBackground('host.readMemory', CHECK_EVERY_MS, () => this.#readMemory());
  }

  /** Total and used capacity, and whether new sandboxes would be refused; sent to control nodes. */
  get load(): {
    memoryMib: number;
    memoryMibUsed: number;
    vcpus: number;
    vcpusUsed: number;
    isLow: boolean;
  } {
    const { total, storage } = this.#options;
    const used = this.#used();
    const isStorageLow = storage.isLow || storage.problem !== undefined;
    return {
      memoryMib: total.memoryMib,
      memoryMibUsed: used.memoryMib,
      vcpus: total.vcpus,
      vcpusUsed: used.vcpus,
      isLow: isStorageLow || this.#isMemoryLow || this.#order !== 'up',
    };
  }

  /** Follows the operator's order from now on: unless it is `up`, no new sandbox is taken. */
  follow(order: HostOrder): void {
    this.#order = order;
  }

  /** @throws AppError `no_capacity` while the operator wants no further sandbox here */
  refuseIfCordoned(): void {
    if (this.#order === 'up') return;
    throw new AppError(
      'no_capacity',
      'the host takes no new sandboxes now, by its operator’s order',
    );
  }

  /**
   * Holds capacity for a new machine.
   * @returns restores what it held before
   * @throws AppError `no_capacity`, `host_full`
   */
  hold(holder: Holder): () => void {
    const { id, config } = holder;
    this.refuseIfFull(config, id);
    const before = this.#held.get(id);
    this.holdExisting(holder);
    return () => (before === undefined ? this.release(id) : this.#set(holder, before));
  }

  /** Whether such a sandbox would fit if nothing else were here. */
  couldHold(config: Config): boolean {
    const need = needOf(config);
    const { total } = this.#options;
    return need.memoryMib <= total.memoryMib && need.vcpus <= total.vcpus;
  }

  /** Whether it would fit now. */
  canHold(config: Config): boolean {
    try {
      this.refuseIfFull(config);
      return true;
    } catch {
      return false;
    }
  }

  /**
   * @param sandboxId what it holds already is not counted
   * @throws AppError `no_capacity`, `host_full` when such a sandbox would not fit now
   */
  refuseIfFull(config: Config, sandboxId?: string): void {
    const { total, storage } = this.#options;
    const need = needOf(config);
    if (this.#order === 'drained') {
      throw new AppError(
        'no_capacity',
        'the host is being drained by its operator; try again later',
      );
    }
    storage.refuseIfLow();
    const used = this.#used(sandboxId);
    if (
      used.memoryMib + need.memoryMib > total.memoryMib ||
      used.vcpus + need.vcpus > total.vcpus ||
      this.#isMemoryLow
    ) {
      throw new AppError('no_capacity', 'the host has no capacity for this sandbox now; try again');
    }
  }

  /** @throws AppError `host_full` when too little storage is left for another disk */
  refuseIfStorageLow(): void {
    this.#options.storage.refuseIfLow();
  }

  /** Holds capacity for a machine that runs already, whether it fits or not. */
  holdExisting(holder: Holder): void {
    this.#set(holder, needOf(holder.config));
  }

  /** Holds the memory of a machine that is paused in it. */
  holdMemory(holder: Holder): void {
    this.#set(holder, { ...needOf(holder.config), vcpus: 0 });
  }

  release(sandboxId: string): void {
    this.#held.delete(sandboxId);
    this.#options.meter?.end(sandboxId);
    this.#publish(this.#options.directory.release(this.#options.hostId, sandboxId));
  }

  /** Renews the host's entry in the directory. @returns whether the directory had lost it */
  async announce(): Promise<boolean> {
    const { directory, hostId, total } = this.#options;
    const wasLost = await directory.announce(hostId, total);
    if (wasLost || this.#isCopyStale) {
      const held = [...this.#held].map(([sandboxId, need]) => ({ sandboxId, ...need }));
      this.#isCopyStale = false;
      try {
        await directory.replace(hostId, held);
      } catch (error) {
        this.#isCopyStale = true;
        throw error;
      }
    }
    return wasLost;
  }

  close(): void {
    this.#stop();
  }

  #set({ id, accountId, config }: Holder, need: SandboxResources): void {
    const { hostId, directory, meter } = this.#options;
    this.#held.set(id, need);
    meter?.begin(id, accountId, { vcpus: need.vcpus, memoryMib: config.memSizeMib });
    this.#publish(directory.hold(hostId, id, need));
  }

  #used(except?: string): SandboxResources {
    let [memoryMib, vcpus] = [0, 0];
    for (const [sandboxId, need] of this.#held) {
      if (sandboxId === except) continue;
      memoryMib += need.memoryMib;
      vcpus += need.vcpus;
    }
    return { memoryMib, vcpus };
  }

  get #isMemoryLow(): boolean {
    return this.#availableMib < this.#options.memoryReserveMib;
  }

  /** If the write fails, the next announcement corrects the directory. */
  #publish(written: Promise<unknown>): void {
    written.catch((error: unknown) => {
      this.#isCopyStale = true;
      this.#options.log.warn({ err: toError(error) }, 'capacity:publishFailed');
    });
  }

  async #readMemory(): Promise<void> {
    const text = await readFile('/proc/meminfo', 'utf8');
    const kib = Number(/^MemAvailable:\s+(\d+) kB$/mu.exec(text)?.[1] ?? Number.POSITIVE_INFINITY);
    this.#availableMib = (kib * 1024) / MiB;
  }
}
