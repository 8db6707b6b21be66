import { repeatInBackground } from '../../shared/background.ts';
import type { Logger } from '../../shared/log.ts';
import type { FileSystemSpace, StorageWatch } from '../../shared/storage-watch.ts';
import { HOUR_MS } from '../../shared/units.ts';
import type { ImageStore, UsedImage } from './image-store.ts';
import type { RegionStore } from './region-store.ts';

const LOOK_MS = 5_000;
/** Evicts before other work suffers, which is refused only below the reserve itself. */
const RESERVES_FREE = 2;
/** The region is told of a use unless it knows of one that was this short a time before. */
const NOTE_USE_MS = HOUR_MS;

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
 * Removes images that nobody holds: those that nobody has used for long, and from a file system
 * that is short of space the longest unused ones, one at a time. On a file system that holds both,
 * a host's own copies go first, since the region's store brings them back.
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
    const { store, storage, directories, log } = this.#deps;
    const [own, shared] = [storage.spaceOf(directories.own), storage.spaceOf(directories.region)];
    const isTight = this.#isTight(own);
    const { unused } = store;
    for (const { digest } of this.#chooseFrom(unused, isTight)) {
      if (await store.remove(digest)) log.info({ digest, isTight }, 'image:evicted');
    }
    const ownGoFirst = own?.device === shared?.device && unused.length > 0;
    await this.#evictFromRegion(this.#isTight(shared) && !ownGoFirst);
  }

  async #evictFromRegion(isTight: boolean): Promise<void> {
    const { region, log } = this.#deps;
    const stored = await this.#noteUses(await region.list());
    for (const { digest } of this.#chooseFrom(stored, isTight)) {
      await region.remove(digest);
      log.info({ digest, isTight }, 'image:evictedFromRegion');
    }
  }

  /** @param images the longest unused first */
  #chooseFrom(images: readonly UsedImage[], isTight: boolean): readonly UsedImage[] {
    const oldest = Date.now() - this.#deps.keepMs;
    return images.filter(({ usedAtMs }, index) => usedAtMs < oldest || (isTight && index === 0));
  }

  /**
   * Tells the region what its images are used for here. Other hosts see nothing else of a use: one
   * that has an image does not read it from there.
   * @returns the region's images, the longest unused first
   */
  async #noteUses(stored: readonly UsedImage[]): Promise<readonly UsedImage[]> {
    const { store, region } = this.#deps;
    const { uses } = store;
    const noted: UsedImage[] = [];
    for (const image of stored) {
      const { digest } = image;
      const usedAtMs = uses.get(digest) ?? 0;
      const isNews = usedAtMs > image.usedAtMs + NOTE_USE_MS;
      if (isNews) await region.noteUse(digest, usedAtMs);
      noted.push(isNews ? { digest, usedAtMs } : image);
    }
    return noted.toSorted((a, b) => a.usedAtMs - b.usedAtMs);
  }

  #isTight(space: FileSystemSpace | undefined): boolean {
    if (space === undefined) return false;
    return space.freeBytes < this.#deps.storage.reserveBytes * RESERVES_FREE;
  }
}
