import { runInBackground } from '../../shared/background.ts';
import type { Directory } from '../../shared/directory/directory.ts';
import type { HostLoad } from '../../shared/links/stream-protocol.ts';
import { SCHEMA_LIMITS } from '../../shared/schemas/limits.ts';
import type { Logger } from '../../shared/log.ts';
import { ownVersion } from '../../shared/metrics.ts';
import { isTransitional, type SandboxState } from '../../shared/sandbox-lifecycle.ts';
import type { AcceleratorChoice, HostOrder, HostReport } from '../../shared/schemas/host.ts';

/** The parts of a host that follow orders, and the figures that it reports. */
interface OrderedHost {
  readonly execs: { readonly running: number; readonly waiting: number };
  readonly storage: { readonly freeBytes: number };
  readonly disks: {
    readonly attached: number;
    readonly held: readonly string[];
    releaseUnused(): Promise<void>;
  };
  /** Undefined when it runs none. */
  readonly sandboxes:
    | {
        readonly load: Pick<
          HostLoad['sandboxes'],
          'memoryMib' | 'memoryMibUsed' | 'vcpus' | 'vcpusUsed'
        >;
        readonly states: ReadonlyMap<string, SandboxState>;
        readonly storageId?: string | undefined;
        readonly pausedKeepDisks: boolean;
        readonly accelerator?: () => AcceleratorChoice | undefined;
        readonly registry: { pauseRunning(): Promise<void> };
        follow(order: HostOrder, toldAt: number): void;
      }
    | undefined;
}

export interface HostOrdersDeps {
  readonly hostId: string;
  readonly directory: Pick<Directory, 'hosts'>;
  readonly host: OrderedHost;
  readonly config: { readonly execSlots: number };
  readonly log: Logger;
}

/**
 * Follows the operator's order, and describes what this host has (host-beat.ts tells it). The order
 * is kept in the directory alone, so that the next agent follows it, too.
 */
export class HostOrders {
  readonly #deps: HostOrdersDeps;
  readonly #version = ownVersion();
  #order: HostOrder = 'up';
  #isClearing = false;

  private constructor(deps: HostOrdersDeps, order: HostOrder) {
    this.#deps = deps;
    this.follow(order, performance.now());
  }

  /** Follows the order from the start, before the host has any work. */
  static async open(deps: HostOrdersDeps): Promise<HostOrders> {
    return new HostOrders(deps, await deps.directory.hosts.orderOf(deps.hostId));
  }

  /** Whether the host must take no further disks. */
  get isCordoned(): boolean {
    return this.#order !== 'up';
  }

  /**
   * @param toldAt when the figures that the directory has were told, by `performance.now()`
   * @returns whether the order has changed
   */
  follow(order: HostOrder, toldAt: number): boolean {
    this.#deps.host.sandboxes?.follow(order, toldAt);
    if (order === this.#order) return false;
    this.#deps.log.info({ order }, 'host:orderFollowed');
    this.#order = order;
    return true;
  }

  /**
   * Begins to give up what a cordoned or drained host should not have. To be repeated until nothing
   * is left; the host's beat does not wait for a disk or a sandbox.
   */
  clearSoon(): void {
    if (!this.isCordoned || this.#isClearing) return;
    this.#isClearing = true;
    runInBackground('host.clear', async () => {
      try {
        const { disks, sandboxes } = this.#deps.host;
        if (this.#order === 'drained') await sandboxes?.registry.pauseRunning();
        await disks.releaseUnused();
      } finally {
        this.#isClearing = false;
      }
    });
  }

  /** The host's figures now. */
  report(): HostReport {
    const {
      host,
      config: { execSlots },
    } = this.#deps;
    const { execs, disks, storage, sandboxes } = host;
    const { memoryMib = 0, memoryMibUsed = 0, vcpus = 0, vcpusUsed = 0 } = sandboxes?.load ?? {};
    const states = [...(sandboxes?.states ?? [])];
    const active = states.filter(([, state]) => isActive(state)).map(([id]) => id);
    const { held } = disks;
    const machines = sandboxes?.accelerator?.();
    return {
      version: this.#version,
      seenAt: Date.now(),
      order: this.#order,
      vcpus,
      vcpusFree: Math.max(0, vcpus - vcpusUsed),
      memoryMib,
      memoryMibFree: Math.max(0, memoryMib - memoryMibUsed),
      // Free space is unknown until the first look at the storage is answered.
      storageFreeBytes: Number.isFinite(storage.freeBytes) ? storage.freeBytes : 0,
      ...{ execSlots, execsRunning: execs.running, execsWaiting: execs.waiting },
      sandboxes: states.length,
      sandboxesActive: active.length,
      disks: disks.attached,
      disksHeld: held.length,
      sandboxesActiveIds: active.slice(0, SCHEMA_LIMITS.hostReportIdsMax),
      disksHeldIds: held.slice(0, SCHEMA_LIMITS.hostReportIdsMax),
      pausedKeepDisks: sandboxes?.pausedKeepDisks ?? false,
      ...(machines && {
        accelerator: machines.accelerator,
        acceleratorReason: machines.reason,
      }),
      ...(sandboxes?.storageId === undefined ? {} : { sandboxStorage: sandboxes.storageId }),
    };
  }
}

const isActive = (state: SandboxState): boolean => state === 'running' || isTransitional(state);
