import { mkdir, readdir, readFile, rename, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { randomBytes } from 'node:crypto';
import Type from 'typebox';
import { runInBackground } from '../../shared/background.ts';
import { ignoring, toError } from '../../shared/errors.ts';
import { parseJson } from '../../shared/json.ts';
import type { Logger } from '../../shared/log.ts';
import { compile } from '../../shared/validate.ts';
import { mountReadOnly, unmountLeftover } from '../disks/mount.ts';
import { SerialQueue } from '../system/queues/serial-queue.ts';
import { failpoint } from '../system/failpoint.ts';
import { syncPath, writeDurably } from '../system/write-durably.ts';
import type { BuiltImage, HeldImage, ImageConfig, ImagePlatform } from './built-image.ts';

const RECORD = 'image.json';
const DISK = 'root.ext4';
const PARTIAL = '.partial-';

const Record = Type.Object({
  digest: Type.String({ pattern: '^sha256:[0-9a-f]{64}$' }),
  platform: Type.Enum(['amd64', 'arm64']),
  config: Type.Object({
    env: Type.Unsafe<Record<string, string>>({
      type: 'object',
      additionalProperties: { type: 'string' },
    }),
    workingDir: Type.String({ pattern: '^/' }),
    user: Type.String(),
  }),
});
const parseRecord = compile(Record);

export interface HoldOptions {
  /** Also mount the tree, for containers. */
  readonly tree?: boolean | undefined;
}

/** An image of the store, and its users. */
interface Entry {
  readonly image: BuiltImage;
  readonly directory: string;
  holds: number;
  treeHolds: number;
  isMounted: boolean;
  usedAtMs: number;
  /** Mounts and unmounts of its tree, in turn. */
  readonly mounts: SerialQueue;
}

/** An image, and when it was used last. */
export interface UsedImage {
  readonly digest: string;
  readonly usedAtMs: number;
}

/** The result of a build, in a directory of {@link ImageStore.newPartial}. */
interface MadeImage {
  readonly digest: string;
  readonly platform: ImagePlatform;
  readonly config: ImageConfig;
}

const nameOf = (digest: string): string => digest.replace(':', '-');

/**
 * The images that this host has: `<directory>/sha256-…/`, with the root disk and a description.
 * They are made aside and renamed, so a crash leaves an image or none. One that is held is never
 * removed.
 */
export class ImageStore {
  /** Made at set-up, never removed while this agent runs. Its digest is that of its description. */
  readonly defaultImage: BuiltImage;
  readonly #directory: string;
  readonly #firstLoop: number;
  readonly #log: Logger;
  readonly #entries = new Map<string, Entry>();
  readonly #additions = new SerialQueue();

  private constructor(deps: ImageStoreDeps) {
    this.defaultImage = deps.defaultImage;
    this.#directory = deps.directory;
    this.#firstLoop = deps.firstLoop;
    this.#log = deps.log;
  }

  /** Finds what there is, and removes what builds of a former agent left. */
  static async open(deps: ImageStoreDeps): Promise<ImageStore> {
    const store = new ImageStore(deps);
    await mkdir(deps.directory, { recursive: true, mode: 0o711 });
    for (const name of await readdir(deps.directory)) await store.#adopt(name);
    return store;
  }

  /**
   * Holds an image. Whoever has a layer on it holds it for as long as the layer exists.
   * @returns undefined when this host does not have it
   */
  async hold(digest: string, { tree = false }: HoldOptions = {}): Promise<HeldImage | undefined> {
    if (digest === this.defaultImage.digest) {
      return { image: this.defaultImage, release: () => undefined };
    }
    const entry = this.#entries.get(digest);
    if (entry === undefined) return undefined;
    entry.holds += 1;
    if (tree) entry.treeHolds += 1;
    let isHeld = true;
    const release = (): void => {
      if (!isHeld) return;
      isHeld = false;
      this.#release(entry, tree);
    };
    try {
      if (tree) await entry.mounts.add(() => this.#updateTree(entry));
      return { image: entry.image, release };
    } catch (error) {
      release();
      throw error;
    }
  }

  /** An empty directory for an image that is being made. */
  async newPartial(): Promise<string> {
    const path = join(this.#directory, `${PARTIAL}${randomBytes(6).toString('hex')}`);
    await failpoint('make image directory', () => mkdir(path, { mode: 0o700 }));
    return path;
  }

  diskOf(partial: string): string {
    return join(partial, DISK);
  }

  has(digest: string): boolean {
    return this.#entries.has(digest);
  }

  /** Where the image is, if it is here. */
  directoryOf(digest: string): string {
    return join(this.#directory, nameOf(digest));
  }

  /**
   * Takes an image over from where it was made; durable when it returns. One that was made twice,
   * from two sources, is taken once.
   */
  add(partial: string, made: MadeImage): Promise<void> {
    return this.#additions.add(() => this.#place(partial, made));
  }

  /** Images that nobody holds, the longest unused first. */
  get unused(): readonly UsedImage[] {
    return [...this.#entries.values()]
      .filter(({ holds }) => holds === 0)
      .map(({ image: { digest }, usedAtMs }) => ({ digest, usedAtMs }))
      .sort((a, b) => a.usedAtMs - b.usedAtMs);
  }

  /** When each image was used last; one that is held is in use now. */
  get uses(): ReadonlyMap<string, number> {
    const now = Date.now();
    const uses = [...this.#entries.values()].map(
      ({ image: { digest }, holds, usedAtMs }) => [digest, holds > 0 ? now : usedAtMs] as const,
    );
    return new Map(uses);
  }

  /** @returns false when it is held, or not there */
  async remove(digest: string): Promise<boolean> {
    const entry = this.#entries.get(digest);
    if (entry === undefined || entry.holds > 0) return false;
    this.#entries.delete(digest); // From now on nobody can hold it.
    await entry.mounts.add(() => this.#updateTree(entry));
    const doomed = await this.#aside();
    await failpoint('remove image', () => rename(entry.directory, doomed));
    await rm(doomed, { recursive: true, force: true });
    return true;
  }

  /** Unmounts the trees. What still uses one keeps it. */
  async close(): Promise<void> {
    for (const entry of this.#entries.values()) {
      entry.treeHolds = 0;
      await entry.mounts.add(() => this.#updateTree(entry));
    }
  }

  async #place(partial: string, made: MadeImage): Promise<void> {
    if (this.#entries.has(made.digest)) return;
    const directory = this.directoryOf(made.digest);
    await writeDurably(partial, RECORD, JSON.stringify(made));
    await failpoint('place image', () => rename(partial, directory));
    await syncPath(this.#directory);
    this.#insert(directory, made, Date.now());
  }

  #aside(): Promise<string> {
    return Promise.resolve(join(this.#directory, `${PARTIAL}${randomBytes(6).toString('hex')}`));
  }

  async #adopt(name: string): Promise<void> {
    const directory = join(this.#directory, name);
    if (name.startsWith(PARTIAL)) return this.#removePartial(directory);
    try {
      const file = join(directory, RECORD);
      const made = parseRecord(parseJson(await readFile(file, 'utf8')), RECORD);
      if (nameOf(made.digest) !== name) throw new Error(`it describes ${made.digest}`);
      this.#insert(directory, made, (await stat(file)).mtimeMs);
    } catch (error) {
      this.#log.error({ directory, err: toError(error) }, 'image:unreadable');
    }
  }

  /** If the removal fails, the next agent start repeats it. */
  async #removePartial(directory: string): Promise<void> {
    await rm(directory, { recursive: true, force: true }).catch((error: unknown) => {
      this.#log.error({ directory, err: toError(error) }, 'image:removePartialFailed');
    });
  }

  #insert(directory: string, { digest, platform, config }: MadeImage, usedAtMs: number): void {
    const rootDisk = join(directory, DISK);
    const image = { digest, platform, config, rootDisk, tree: join(directory, 'tree') };
    const counts = { holds: 0, treeHolds: 0, isMounted: false };
    const mounts = new SerialQueue();
    this.#entries.set(digest, { image, directory, ...counts, usedAtMs, mounts });
  }

  #release(entry: Entry, tree: boolean): void {
    entry.holds -= 1;
    entry.usedAtMs = Date.now();
    runInBackground('image.release', async () => {
      const now = new Date();
      await utimes(join(entry.directory, RECORD), now, now).catch(ignoring('ENOENT'));
      if (!tree) return;
      entry.treeHolds -= 1;
      await entry.mounts.add(() => this.#updateTree(entry));
    });
  }

  /** Has the tree mounted while it is needed. Mounts of the same file by others do no harm. */
  async #updateTree(entry: Entry): Promise<void> {
    const isNeeded = entry.treeHolds > 0;
    if (isNeeded === entry.isMounted) return;
    const { tree, rootDisk } = entry.image;
    if (isNeeded) await mountReadOnly(rootDisk, tree, this.#firstLoop);
    else await unmountLeftover(tree);
    entry.isMounted = isNeeded;
  }
}

export interface ImageStoreDeps {
  readonly directory: string;
  readonly defaultImage: BuiltImage;
  /** The first loop device number that belongs to this host (LoopDevices). */
  readonly firstLoop: number;
  readonly log: Logger;
}
