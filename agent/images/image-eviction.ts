import { repeatInBackground } from '../../shared/background.ts';
import type { Logger } from '../../shared/log.ts';
import type { StorageWatch } from '../../shared/storage-watch.ts';
import type { ImageStore } from './image-store.ts';
import type { RegionStore } from './region-store.ts';

const LOOK_MS = 5_000;
/** Images go while there is still room for other work: that is refused below the reserve itself. */
const RESERVES_FREE = 2;

interface EvictionDeps {
  readonly store: ImageStore;
  readonly region: RegionStore;
  readonly storage: Pick<StorageWatch, 'freeBytes' | 'reserveBytes'>;
  /** How long an image is kept that nobody uses. */
  readonly keepMs: number;
  readonly log: Logger;
}

/**
 * Removes images that nobody holds: those that nobody has used for long, and under disk pressure the
 * longest unused ones, one at a time. A host's own copies go first, since the region's store brings
 * them back.
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
    const { store, region, keepMs, log } = this.#deps;
    const oldest = Date.now() - keepMs;
    const isOld = ({ usedAtMs }: { usedAtMs: number }): boolean => usedAtMs < oldest;
    const stored = await region.list();
    const { unused } = store;
    const isTight = this.#isTight;
    const locals = unused.filter((image, index) => isOld(image) || (isTight && index === 0));
    const mayShrinkRegion = isTight && unused.length === 0;
    const regionals = stored.filter(
      (image, index) => isOld(image) || (mayShrinkRegion && index === 0),
    );
    for (const { digest } of locals) {
      if (await store.remove(digest)) log.info({ digest, isTight }, 'image:evicted');
    }
    for (const { digest } of regionals) {
      await region.remove(digest);
      log.info({ digest, isTight }, 'image:evictedFromRegion');
    }
  }

  get #isTight(): boolean {
    const { freeBytes, reserveBytes } = this.#deps.storage;
    return freeBytes < reserveBytes * RESERVES_FREE;
  }
}
