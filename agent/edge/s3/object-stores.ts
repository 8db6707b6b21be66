import type { AppError } from '../../../shared/errors.ts';
import type { DiskClaim } from '../../disks/disk-claims.ts';
import type { DiskRegistry } from '../../disks/disk-registry.ts';
import { ObjectStore } from './store/object-store.ts';

interface Shared {
  readonly store: ObjectStore;
  users: number;
}

/** A store that is open for one request. */
export interface OpenStore extends AsyncDisposable {
  readonly store: ObjectStore;
  /** Calls `settle` of the disk's claim. */
  settle(): Promise<void>;
}

/** The stores of the disks in use: requests share one store per disk, and so its locks. */
export class ObjectStores {
  readonly #disks: DiskRegistry;
  readonly #shared = new Map<string, Shared>();

  constructor(disks: DiskRegistry) {
    this.#disks = disks;
  }

  /**
   * Claims the disk until the store is disposed.
   * @throws AppError `disk_moved` when another host has it, and the other errors of a claim
   */
  async open(
    { accountId, id: diskId }: { accountId: string; id: string },
    clientId: string,
    onRevoked: (reason: AppError) => void,
  ): Promise<OpenStore> {
    const claim = await this.#disks.get({ accountId, diskId }).claim(clientId, onRevoked);
    const shared = this.#shared.get(diskId) ?? newShared(claim);
    this.#shared.set(diskId, shared);
    shared.users += 1;
    return {
      store: shared.store,
      settle: () => claim.settle(),
      [Symbol.asyncDispose]: async () => {
        shared.users -= 1;
        if (shared.users === 0) this.#shared.delete(diskId);
        claim.release();
      },
    };
  }
}

const newShared = ({ path: contents, uploads }: DiskClaim): Shared => ({
  store: new ObjectStore({ contents, uploads }),
  users: 0,
});
