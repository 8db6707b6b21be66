import type { AppError } from '../../shared/errors.ts';
import { DiskActor, type DiskActorDeps } from './disk-actor.ts';
import type { DiskRef } from './disk-backing.ts';
import { openDiskFile } from './disk-file.ts';
import { onBehalfOf } from './disk-threads.ts';

/** The actors of this host's disks, by id. The only place where they are created and forgotten. */
export class DiskRegistry {
  readonly #deps: DiskActorDeps;
  readonly #disks = new Map<string, DiskActor>();

  constructor(deps: DiskActorDeps) {
    this.#deps = deps;
  }

  /** How many disks are refused because their storage does not answer. */
  get setAside(): number {
    return [...this.#disks.values()].filter(({ isSetAside }) => isSetAside).length;
  }

  /** How many disks are attached here. */
  get attached(): number {
    return [...this.#disks.values()].filter(({ isAttached }) => isAttached).length;
  }

  /** Ids of those that sandboxes mount. */
  get held(): string[] {
    const held = [...this.#disks].filter(([, disk]) => disk.isAttached && disk.isHeld);
    return held.map(([id]) => id);
  }

  get(ref: DiskRef): DiskActor {
    const known = this.#disks.get(ref.diskId);
    if (known !== undefined) return known;
    const actor = new DiskActor(this.#deps, ref);
    this.#disks.set(ref.diskId, actor);
    return actor;
  }

  /** @throws AppError `not_found`, or `bad_request` when the key is not a regular file */
  async statFile(ref: DiskRef, key: string, clientId: string): Promise<{ sizeBytes: number }> {
    const claim = await this.get(ref).claim(clientId, () => undefined);
    try {
      return await onBehalfOf(ref.accountId, undefined, async () => {
        await using file = await openDiskFile(claim.path, key);
        return { sizeBytes: Number(file.stats.size) };
      });
    } finally {
      claim.release();
    }
  }

  /** Ends everything that uses the disk and deletes its data. Idempotent. */
  async delete(ref: DiskRef): Promise<void> {
    await this.get(ref).delete();
    this.#disks.delete(ref.diskId);
  }

  /** Lets other hosts have the disks that nothing uses. */
  async releaseUnused(): Promise<void> {
    await Promise.allSettled([...this.#disks.values()].map((disk) => disk.release()));
  }

  /** Gives every disk up; whatever uses one is ended with this reason. */
  async closeAll(reason: AppError): Promise<void> {
    await Promise.all([...this.#disks.values()].map((disk) => disk.close(reason)));
    await this.#deps.backing.close();
  }
}
