import { randomBytes } from 'node:crypto';
import { chown, mkdir, readdir, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf, ignoring } from '../../shared/errors.ts';
import { IMAGE_LIMITS } from './limits.ts';
import { DAY_MS } from '../../shared/units.ts';
import { failpoint } from '../system/failpoint.ts';
import { run } from '../system/spawn.ts';
import type { RegionStorage } from '../system/region-storage.ts';
import { syncPath } from '../system/write-durably.ts';
import type { ImagePlatform } from './built-image.ts';
import { ImageFailure } from './image-source.ts';
import type { UsedImage } from './image-store.ts';
import { readFileWithin } from '../system/read-file-within.ts';
import { checkLayout, digestOf, isWhole } from './oci-layout.ts';
import { chooseManifest, type OciManifest, parseManifest } from './oci-manifest.ts';

const MANIFEST = 'manifest.json';
const SOURCE_INDEX = 'source-index.json';
const USED = 'used';
const SYNC_MS_MAX = 300_000;
/** A build and the removal of an image take minutes; the rest is for clocks that differ. */
const ASIDE_KEPT_MS = DAY_MS;
/** The name of an aside of any host. */
const ASIDE = /^\..+-[0-9a-f]{12}$/u;

/** A registry's answer for an image: the manifest of a platform, and the index that named it. */
export interface ImageDocuments {
  readonly index: string | undefined;
  readonly manifest: string;
}

/** The digest of the image that the documents are of. */
const imageOf = ({ index, manifest }: ImageDocuments): string => digestOf(index ?? manifest);

/** A place for a pull: skopeo's user writes to `pulled`, and the layout is made beside it. */
export interface Pulling {
  readonly directory: string;
  readonly pulled: string;
}

/** An image of the region's store. */
export interface StoredImage {
  readonly layout: string;
  readonly manifest: OciManifest;
}

/**
 * The images of the region as their registries sent them, on the storage that its hosts share:
 * `<storage>/images/sha256-<digest>-<platform>/`, an OCI layout each. Other hosts write it too, so
 * whoever reads it checks digests.
 */
export class RegionStore {
  readonly #storage: Pick<RegionStorage, 'refuseIfMissing'>;
  readonly #directory: string;
  readonly #platform: ImagePlatform;
  /** Marks what this host is making or removing; other hosts leave that alone for a day. */
  readonly #asidePrefix: string;
  /** Those that are in use now. */
  readonly #asides = new Set<string>();

  constructor(
    storage: Pick<RegionStorage, 'directory' | 'refuseIfMissing'>,
    hostId: string,
    platform: ImagePlatform,
  ) {
    this.#storage = storage;
    this.#directory = join(storage.directory, 'images');
    this.#platform = platform;
    this.#asidePrefix = `.${hostId}-`;
  }

  /**
   * Removes what a crash of this host left unfinished, and what is so old that its host cannot be
   * at work on it: that one may never return.
   */
  async removeLeftovers(): Promise<void> {
    await this.#prepare();
    for (const name of await readdir(this.#directory)) {
      const path = join(this.#directory, name);
      if (!ASIDE.test(name) || this.#asides.has(path)) continue;
      if (name.startsWith(this.#asidePrefix) || (await isForgotten(path)))
        await rm(path, { recursive: true, force: true });
    }
  }

  /**
   * @returns undefined when the region does not have the image
   * @throws ImageFailure `interrupted` when what is stored is not that image
   */
  async find(digest: string): Promise<StoredImage | undefined> {
    const layout = this.directoryOf(digest);
    try {
      const documents = await readDocuments(layout);
      const named =
        documents.index === undefined ? digest : chooseManifest(documents.index, this.#platform);
      if (imageOf(documents) !== digest || digestOf(documents.manifest) !== named) {
        throw new ImageFailure('interrupted', 'the stored image is damaged');
      }
      const manifest = parseManifest(documents.manifest, Number.MAX_SAFE_INTEGER);
      await checkLayout(layout, manifest);
      const now = new Date();
      await utimes(join(layout, USED), now, now);
      return { layout, manifest };
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return undefined;
      throw error;
    }
  }

  /**
   * Whether the region has the image. One that is visibly damaged is removed.
   * @throws the signal's reason; system errors when that cannot be known
   */
  async has(digest: string, signal: AbortSignal): Promise<boolean> {
    try {
      return (await this.find(digest)) !== undefined;
    } catch (error) {
      if (!(error instanceof ImageFailure)) throw error;
      return !(await this.removeIfDamaged(digest, signal));
    }
  }

  /**
   * @param uid who pulls
   * @throws AppError `unavailable` when the storage is not there
   */
  async begin(uid: number): Promise<Pulling> {
    await this.#prepare();
    const directory = this.#newAside();
    const pulled = join(directory, 'pulled');
    await failpoint('make pull directory', () => mkdir(directory, { mode: 0o700 }));
    await mkdir(pulled, { mode: 0o700 });
    await chown(pulled, uid, uid);
    return { directory, pulled };
  }

  /** Keeps a layout for the region; durable when it returns. Another host may have been faster. */
  async keep(pulling: Pulling, documents: ImageDocuments): Promise<void> {
    const { directory, pulled } = pulling;
    const { index, manifest } = documents;
    await rm(pulled, { recursive: true, force: true });
    await writeFile(join(directory, MANIFEST), manifest);
    if (index !== undefined) await writeFile(join(directory, SOURCE_INDEX), index);
    await writeFile(join(directory, USED), '');
    await run('sync', ['--file-system', directory], { timeoutMs: SYNC_MS_MAX });
    const to = this.directoryOf(imageOf(documents));
    const placed = failpoint('keep image for region', () => rename(directory, to));
    await placed.catch(ignoring('ENOTEMPTY', 'EEXIST'));
    await syncPath(this.#directory);
  }

  /** Removes what was not kept of a pull, also after {@link keep}. */
  async discard({ directory }: Pulling): Promise<void> {
    await rm(directory, { recursive: true, force: true });
    this.#asides.delete(directory);
  }

  /** Images for hosts of this platform, the longest unused first. */
  async list(): Promise<UsedImage[]> {
    const names = await readdir(this.#directory).catch(() => []);
    const found = names.flatMap((name) => {
      const [, hex] = new RegExp(`^sha256-([0-9a-f]{64})-${this.#platform}$`, 'u').exec(name) ?? [];
      return hex === undefined ? [] : [`sha256:${hex}`];
    });
    const used = found.map(async (digest) => {
      const status = await stat(join(this.directoryOf(digest), USED)).catch(() => undefined);
      return { digest, usedAtMs: status?.mtimeMs ?? 0 };
    });
    return (await Promise.all(used)).sort((a, b) => a.usedAtMs - b.usedAtMs);
  }

  /** Notes a use of an image. One that the region does not have is left so. */
  async noteUse(digest: string, usedAtMs: number): Promise<void> {
    const usedAt = new Date(usedAtMs);
    await utimes(join(this.directoryOf(digest), USED), usedAt, usedAt).catch(ignoring('ENOENT'));
  }

  /** Idempotent. A build that reads it meanwhile, here or elsewhere, fails and pulls anew. */
  async remove(digest: string): Promise<void> {
    const doomed = this.#newAside();
    try {
      await rename(this.directoryOf(digest), doomed);
      await rm(doomed, { recursive: true, force: true });
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT') throw error;
    } finally {
      this.#asides.delete(doomed);
    }
  }

  /**
   * Removes an image if what is stored is not that image; every byte is read.
   * @returns whether the region has it no more
   * @throws the signal's reason; system errors when that cannot be known
   */
  async removeIfDamaged(digest: string, signal: AbortSignal): Promise<boolean> {
    if (await this.#isIntact(digest, signal)) return false;
    await this.remove(digest);
    return true;
  }

  async #isIntact(digest: string, signal: AbortSignal): Promise<boolean> {
    try {
      const stored = await this.find(digest);
      return stored !== undefined && (await isWhole(stored.layout, stored.manifest, signal));
    } catch (error) {
      if (error instanceof ImageFailure) return false;
      throw error;
    }
  }

  async #prepare(): Promise<void> {
    await this.#storage.refuseIfMissing();
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
  }

  /** Where the image is, if it is here. */
  directoryOf(digest: string): string {
    return join(this.#directory, `${digest.replace(':', '-')}-${this.#platform}`);
  }

  #newAside(): string {
    const aside = join(this.#directory, `${this.#asidePrefix}${randomBytes(6).toString('hex')}`);
    this.#asides.add(aside);
    return aside;
  }
}

/**
 * A pull makes its directory anew, so that one at work is young. One that is being removed may look
 * old: removing it from two hosts does no harm.
 */
async function isForgotten(aside: string): Promise<boolean> {
  const status = await stat(aside).catch(ignoring('ENOENT'));
  return status !== undefined && status.mtimeMs < Date.now() - ASIDE_KEPT_MS;
}

async function readDocuments(layout: string): Promise<ImageDocuments> {
  const read = async (name: string): Promise<string> =>
    (await readFileWithin(join(layout, name), IMAGE_LIMITS.imageManifestBytesMax)).toString('utf8');
  const manifest = await read(MANIFEST);
  const index = await read(SOURCE_INDEX).catch(ignoring('ENOENT'));
  return { index, manifest };
}
