import { repeatUntilStopped } from '../../../shared/background.ts';
import type { Directory } from '../../../shared/directory/directory.ts';
import { toError } from '../../../shared/errors.ts';
import { SANDBOX_LIMITS } from '../limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import type { Logger } from '../../../shared/log.ts';
import type { HostWatch } from './host-watch.ts';
import type { HandoverStore } from './handover-store.ts';

export interface RemovedHostsDeps {
  readonly hostId: string;
  readonly handover: Pick<HandoverStore, 'storage' | 'read'>;
  readonly watch: Pick<HostWatch, 'lockSilent'>;
  readonly directory: Pick<Directory, 'accounts' | 'hosts' | 'sandboxes' | 'snapshots'>;
  readonly log: Logger;
}

/** How many machines are removed at one look. */
const MACHINES_MAX = 32;

/**
 * Clears the directories that hosts have left on the shared storage which an operator has removed.
 * A machine with a record beside it is a sandbox, and other hosts take it; without one it was
 * prewarmed, its creation was not over, or it is a snapshot, whose record went with the host. Such
 * machines go if this host has seen no sign of the removed one and holds its lock, so that no agent
 * of it runs; if no record of the directory names the host any more; and if nothing uses the
 * machine (shim.c). May be repeated after a crash: the host's own directory goes last.
 */
export class RemovedHosts {
  readonly #deps: RemovedHostsDeps;
  #stop: () => Promise<void> = () => Promise.resolve();

  constructor(deps: RemovedHostsDeps) {
    this.#deps = deps;
  }

  start(): void {
    this.#stop = repeatUntilStopped('host.clearRemoved', SANDBOX_LIMITS.sandboxClearLookMs, () =>
      this.clear(),
    );
  }

  close(): Promise<void> {
    return this.#stop();
  }

  /** Looks once for what can go. @throws Error when the storage or the directory cannot be read */
  async clear(): Promise<void> {
    const { hostId: own, handover, watch, directory } = this.#deps;
    await handover.storage.check();
    for (const hostId of await handover.storage.hosts()) {
      if (hostId === own || !(await directory.hosts.isRemoved(hostId))) continue;
      await using lock = await watch.lockSilent(hostId);
      if (lock !== undefined) await this.#clearHost(hostId);
    }
  }

  async #clearHost(hostId: string): Promise<void> {
    const { handover, log } = this.#deps;
    const { storage } = handover;
    const vmIds = await this.#withoutRecord(hostId);
    if (vmIds.length > 0 && (await this.#isNamed(hostId))) return;
    for (const vmId of vmIds.slice(0, MACHINES_MAX)) {
      const isRemoved = await storage.discard(vmId, { hostId });
      if (isRemoved) log.info({ removedHostId: hostId, vmId }, 'storage:machineRemoved');
      else log.warn({ removedHostId: hostId, vmId }, 'storage:machineInUse');
    }
    if (await storage.forgetHost(hostId))
      log.info({ removedHostId: hostId }, 'storage:hostForgotten');
  }

  /** A record that cannot be read counts: an operator may have to find the key that sealed it. */
  async #withoutRecord(hostId: string): Promise<string[]> {
    const { handover } = this.#deps;
    const { storage } = handover;
    const found: string[] = [];
    for (const vmId of await storage.list({ hostId })) {
      const read = handover.read(storage.directoryOf(vmId, { hostId }), vmId);
      if ((await read.catch(toError)) === undefined) found.push(vmId);
    }
    return found;
  }

  /**
   * Whether the directory has a record of the host: its removal was cut off, or something came
   * back.
   */
  async #isNamed(hostId: string): Promise<boolean> {
    const { accounts, sandboxes, snapshots } = this.#deps.directory;
    for (const { id } of await accounts.list()) {
      if ((await sandboxes.list(id)).some((record) => record.hostId === hostId)) return true;
      let cursor: string | undefined;
      do {
        const request = {
          limit: SCHEMA_LIMITS.pageSizeMax,
          ...(cursor === undefined ? {} : { cursor }),
        };
        const page = await snapshots.list(id, request);
        if (page.items.some((record) => record.hostId === hostId)) return true;
        cursor = page.nextCursor;
      } while (cursor !== undefined);
    }
    return false;
  }
}
