import { withoutOverlap } from '../../shared/background.ts';
import type { ControlNode } from '../../shared/directory/control-nodes.ts';
import type { Directory } from '../../shared/directory/directory.ts';
import { SYSTEM_LIMITS } from '../system/limits.ts';
import type { Logger } from '../../shared/log.ts';
import type { Beat } from '../system/beat.ts';
import type { HostOrders } from './host-orders.ts';

export interface HostBeatDeps {
  readonly hostId: string;
  readonly directory: Pick<Directory, 'hosts' | 'controlNodes'>;
  readonly orders: HostOrders;
  readonly beat: Beat;
  /** Called before the directory shows that a new order is followed. */
  readonly onOrder: () => void;
  /** Receives the live control nodes at each beat. */
  readonly onNodes: (nodes: readonly ControlNode[]) => void;
  readonly log: Logger;
}

/**
 * A host's exchange with the directory, in one round trip at each beat: it tells its figures and
 * its address, and is told its operator's order and the live control nodes. Unchanged figures are
 * written anew every `hostAnnounceMs`, since their age shows whether the host is there.
 */
export class HostBeat {
  readonly #deps: HostBeatDeps;
  readonly #exchangeSoon = withoutOverlap('host.beat', () => this.#exchange());
  #internalUrl: string | undefined;
  #written = { text: '', at: Number.NEGATIVE_INFINITY };
  #stop: () => void = () => undefined;

  constructor(deps: HostBeatDeps) {
    this.#deps = deps;
  }

  start(): void {
    this.#stop = this.#deps.beat.every(SYSTEM_LIMITS.hostReportMs, this.#exchangeSoon);
    this.#exchangeSoon();
  }

  /** Announces from now on where other hosts reach this one. */
  announce(internalUrl: string): void {
    this.#internalUrl = internalUrl;
    this.#exchangeSoon();
  }

  /** Withdraws the address, so that other hosts forward nothing more here. */
  async close(): Promise<void> {
    this.#stop();
    this.#internalUrl = undefined;
    await this.#deps.directory.hosts.withdraw(this.#deps.hostId);
  }

  async #exchange(): Promise<void> {
    const { hostId, directory, orders, onOrder, onNodes, log } = this.#deps;
    const { hosts, controlNodes } = directory;
    const askedAt = performance.now();
    const said = { report: orders.report(), internalUrl: this.#internalUrl };
    // Free space always moves a little: alone it is no reason to write.
    const report = { ...said.report, seenAt: 0, storageFreeBytes: 0 };
    const text = JSON.stringify({ ...said, report });
    const isDue = text !== this.#written.text || this.#isAgedAt(askedAt);
    const heard = await hosts.exchange(hostId, isDue ? said : undefined);
    if (heard === undefined) {
      log.error('host:removed');
      // The host was removed while it was cut off: the next agent clears it (removed-host.ts).
      process.kill(process.pid, 'SIGTERM');
      return;
    }
    if (isDue) this.#written = { text, at: askedAt };
    const isNewOrder = orders.follow(heard.order, this.#written.at);
    if (isNewOrder) onOrder();
    onNodes(await controlNodes.readLive(heard.controlNodes));
    if (isNewOrder) return this.#exchange();
    orders.clearSoon();
  }

  /** Whether what was written last is as old as it may get, give or take half a beat. */
  #isAgedAt(now: number): boolean {
    return now - this.#written.at > SYSTEM_LIMITS.hostAnnounceMs - SYSTEM_LIMITS.hostReportMs / 2;
  }
}
