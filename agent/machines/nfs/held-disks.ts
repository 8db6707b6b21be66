import { constants } from 'node:fs';
import { runInBackground } from '../../../shared/background.ts';
import { AppError, toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import type { SandboxMount } from '../../../shared/schemas/sandbox-mount.ts';
import type { DiskRegistry } from '../../disks/disk-registry.ts';
import { closeFile, openBeneath } from '../../disks/disk-calls.ts';
import { onBehalfOf } from '../../disks/disk-threads.ts';
import { layoutOf } from '../../disks/disk-layout.ts';
import { refusedPath } from '../../disks/refused-path.ts';
import type { DiskHoldJournal, DiskHoldRow } from '../../system/journal/disk-hold-journal.ts';
import { repeatUntilDone } from '../../system/queues/until-done.ts';
import type { MachineMount, MountingSandbox, SandboxMounts } from '../attachments.ts';
import { paths } from '../../system/paths.ts';

interface HeldDisksDeps {
  readonly runDir: string;
  readonly journal: DiskHoldJournal;
  readonly disks: DiskRegistry;
  readonly log: Logger;
}

/**
 * Keeps disks for sandboxes of this host. Each disk journals its holds, from before they begin
 * until after their end, so that the next agent knows of every one.
 */
export class HeldDisks implements SandboxMounts {
  readonly #deps: HeldDisksDeps;
  /** Holds of sandboxes that are not on this host, and that could not be released yet. */
  readonly #left = new Set<DiskHoldRow>();
  readonly #closed = new AbortController();

  constructor(deps: HeldDisksDeps) {
    this.#deps = deps;
  }

  async hold(
    { id: sandboxId, accountId }: MountingSandbox,
    mounts: readonly SandboxMount[],
    onLost: (reason: Error) => void,
  ): Promise<() => Promise<void>> {
    if (mounts.length === 0) return async () => undefined;
    // The sandbox is here after all, such as one that came back from another host: from now on its
    // holds are its own.
    for (const row of this.#left) if (row.sandboxId === sandboxId) this.#left.delete(row);
    const had = new Set((await this.#rowsOf(sandboxId)).map(({ diskId }) => diskId));
    const added: DiskHoldRow[] = [];
    const undo = async (): Promise<void> => {
      for (const row of added.toReversed()) await this.#release(row);
    };
    try {
      // In the order of their ids, as commands take their disks.
      for (const mount of mounts.toSorted((a, b) => (a.diskId < b.diskId ? -1 : 1))) {
        const row = { diskId: mount.diskId, sandboxId, accountId };
        if (!had.has(mount.diskId)) added.push(row);
        await this.#holdOne(row, mounts.indexOf(mount), mount, onLost);
      }
    } catch (error) {
      await undo().catch((err: unknown) => {
        this.#deps.log.error({ sandboxId, err: toError(err) }, 'mounts:releaseFailed');
      });
      throw error;
    }
    return undo;
  }

  async retain(sandboxId: string, mounts: readonly SandboxMount[]): Promise<void> {
    for (const row of await this.#rowsOf(sandboxId)) {
      if (!mounts.some(({ diskId }) => diskId === row.diskId)) await this.#release(row);
    }
  }

  locate(mounts: readonly SandboxMount[]): readonly MachineMount[] {
    const contents = (diskId: string): string =>
      layoutOf(paths.heldDisk(this.#deps.runDir, diskId)).contents;
    return mounts.map((mount) => ({ ...mount, contents: contents(mount.diskId) }));
  }

  async recover(sandboxIds: ReadonlySet<string>): Promise<void> {
    for (const row of await this.#deps.journal.list()) {
      if (sandboxIds.has(row.sandboxId)) continue;
      this.#deps.log.warn(row, 'reclaim:diskHold');
      this.#left.add(row);
    }
    if (await this.#releaseLeft()) return;
    const again = (): Promise<boolean> => this.#releaseLeft();
    runInBackground('mounts.release', () => repeatUntilDone(again, this.#closed.signal));
  }

  close(): void {
    this.#closed.abort();
  }

  /** @returns whether nothing is left */
  async #releaseLeft(): Promise<boolean> {
    for (const row of this.#left) {
      try {
        await this.#release(row);
        this.#left.delete(row);
      } catch (error) {
        // The directory still has the disk held for this host.
        this.#deps.log.error({ ...row, err: toError(error) }, 'mounts:releaseFailed');
      }
    }
    return this.#left.size === 0;
  }

  async #rowsOf(id: string): Promise<DiskHoldRow[]> {
    return (await this.#deps.journal.list()).filter(({ sandboxId }) => sandboxId === id);
  }

  async #holdOne(
    { diskId, sandboxId, accountId }: DiskHoldRow,
    position: number,
    { subdirectory }: SandboxMount,
    onLost: (reason: Error) => void,
  ): Promise<void> {
    try {
      const disk = this.#deps.disks.get({ accountId, diskId });
      const contents = await disk.hold(sandboxId, onLost);
      if (subdirectory === '') return;
      await onBehalfOf(accountId, undefined, () => checkDirectory(contents, subdirectory));
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      const message = `mounts[${position}]: disk ${diskId}: ${error.message}`;
      throw new AppError(error.code, message, { cause: error });
    }
  }

  /** The disk's turn to release it is taken at once: a later hold comes after it. */
  #release({ diskId, sandboxId, accountId }: DiskHoldRow): Promise<void> {
    return this.#deps.disks.get({ accountId, diskId }).unhold(sandboxId);
  }
}

/** @throws AppError `bad_request` unless this directory is beneath the disk's contents */
async function checkDirectory(contents: string, subdirectory: string): Promise<void> {
  try {
    await closeFile(await openBeneath(contents, subdirectory, constants.O_DIRECTORY));
  } catch (error) {
    throw refusedPath(error, subdirectory);
  }
}
