import { repeatInBackground } from '../../shared/background.ts';
import type { Logger } from '../../shared/log.ts';
import type { FileSystemSpace, StorageWatch } from '../../shared/storage-watch.ts';
import type { ImageStore } from './image-store.ts';
import type { RegionStore } from './region-store.ts';

const LOOK_MS = 5_000;
/** Images go while there is still room for other work: that is refused below the reserve itself. */
const RESERVES_FREE = 2;

interface EvictionDeps {
  readonly store: ImageStore;
  readonly region: RegionStore;
  readonly storage: Pick<StorageWatch, 'spaceOf' | 'reserveBytes'>;
  /** Watched directories on the file systems of the host's own images, and of the region's. */
  readonly directories: { readonly own: string; readonly region: string };
  /** How long an image is kept that nobody uses. */
  readonly keepMs: number;
  readonly log: Logger;
}

/**
 * Removes images that nobody holds: those that nobody has used for long, and from a file system that
 * is short of space the longest unused ones, one at a time. On a file system that holds both, a
 * host's own copies go first, since the region's store brings them back.
 */
export class ImageEviction {
  readonly #deps: EvictionDeps;
  #stop: () => void = () => undefined;

  constructor(deps: EvictionDeps) {
    this.#deps = deps;
  }

  start(): void {
    this.#stop = repeatInBackground('image.evict', LOOK_MS, () => this.evict());
  }

  close(): void {
    this.#stop();
  }

  /** Looks once for images to evict. */
  async evict(): Promise<void> {
    const { store, region, storage, directories, keepMs, log } = this.#deps;
    const oldest = Date.now() - keepMs;
    const isOld = ({ usedAtMs }: { usedAtMs: number }): boolean => usedAtMs < oldest;
    const stored = await region.list();
    const { unused } = store;
    const [own, shared] = [storage.spaceOf(directories.own), storage.spaceOf(directories.region)];
    const isOwnTight = this.#isTight(own);
    const isRegionTight = this.#isTight(shared);
    const ownGoFirst = own?.device === shared?.device && unused.length > 0;
    const locals = unused.filter((image, index) => isOld(image) || (isOwnTight && index === 0));
    const mayShrinkRegion = isRegionTight && !ownGoFirst;
    const regionals = stored.filter(
      (image, index) => isOld(image) || (mayShrinkRegion && index === 0),
    );
    for (const { digest } of locals) {
      if (await store.remove(digest)) log.info({ digest, isTight: isOwnTight }, 'image:evicted');
    }
    for (const { digest } of regionals) {
      await region.remove(digest);
      log.info({ digest, isTight: isRegionTight }, 'image:evictedFromRegion');
    }
  }

  #isTight(space: FileSystemSpace | undefined): boolean {
    if (space === undefined) return false;
    return space.freeBytes < this.#deps.storage.reserveBytes * RESERVES_FREE;
  }
}
