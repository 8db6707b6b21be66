import { parseImageReference, repositoryOf } from '../../shared/image-reference.ts';
import { AppError, toError } from '../../shared/errors.ts';
import { IMAGE_LIMITS } from './limits.ts';
import { sha256 } from '../../shared/secrets.ts';
import type { StorageWatch } from '../../shared/storage-watch.ts';
import { FairTurns, type Turn } from '../system/queues/fair-turns.ts';
import type { HeldImage } from './built-image.ts';
import {
  type BuildDeps,
  type BuildRun,
  buildFromRegion,
  buildFromRegistry,
  type ResolvedImage,
  resolveImage,
} from './image-build.ts';
import {
  type BringOptions,
  type BuildProgress,
  type ImageBringer,
  HOST_ACCOUNT,
  ImageFailure,
  type ImageSource,
} from './image-source.ts';
import { notePulledFrom, wasPulledFrom } from './pulled-from.ts';
import { RegistryClient } from './registry-client.ts';
import { SharedWork } from './shared-work.ts';

const LOOK_MS = 500;

const notEnabled = (): AppError =>
  new AppError('not_enabled', 'this host builds no images for callers: see IMAGE_BUILDS');

export interface ImageBuilderDeps extends BuildDeps {
  /**
   * Builds that run at the same time. 0: callers cannot build here, and get only what this host or
   * the region has; the host's own image is built all the same.
   */
  readonly buildsMax: number;
  readonly storage: Pick<StorageWatch, 'isLow' | 'refuseIfLow'>;
}

const tookTooLong = (cause: unknown): ImageFailure =>
  new ImageFailure('interrupted', 'the build took too long', { cause });

/**
 * Names builds that can be one. The digest alone is not enough: whoever joined a build from another
 * registry, or with other credentials, would wait for it and share its failure.
 */
const buildKey = ({ digest, source: { reference, credentials }, from }: Build): string => {
  const repository = repositoryOf(parseImageReference(reference));
  return sha256(JSON.stringify([digest, repository, credentials, from]));
};

/** An image to build, and where from. */
interface Build {
  readonly digest: string;
  readonly source: ImageSource;
  /** Undefined: the digest was known before. */
  readonly resolved: ResolvedImage | undefined;
  /**
   * `registry`: this host has the image, and its region lacks it. `region`: its caller cannot have
   * it pulled here. `source`: from the caller's own repository, whatever is here already.
   */
  readonly from: 'anywhere' | 'registry' | 'region' | 'source';
}

/** Builds images on this host, a few at a time; those who want the same one wait for one build. */
export class ImageBuilder implements ImageBringer {
  readonly #deps: ImageBuilderDeps;
  readonly #turns: FairTurns;
  /** By {@link buildKey}. */
  readonly #builds = new Map<string, SharedWork<BuildProgress>>();
  readonly #closed = new AbortController();

  constructor(deps: ImageBuilderDeps) {
    this.#deps = deps;
    this.#turns = new FairTurns({
      count: Math.max(1, deps.buildsMax),
      perAccountMax: Math.max(1, deps.buildsMax - 1),
      waiting: {
        count: IMAGE_LIMITS.imageBuildsWaitingMax,
        perAccountMax: IMAGE_LIMITS.imageBuildsWaitingPerAccountMax,
      },
      refusal: 'too many builds of images wait on the host; try again',
    });
  }

  /** Builds that run or wait. */
  get active(): number {
    return this.#turns.used + this.#turns.waiting;
  }

  async bring(source: ImageSource, options: BringOptions): Promise<HeldImage> {
    const late = AbortSignal.timeout(IMAGE_LIMITS.imageBuildMsMax);
    const signals = [late, this.#closed.signal, ...(options.signal ? [options.signal] : [])];
    const signal = AbortSignal.any(signals);
    try {
      return await this.#bring(source, { ...options, signal });
    } catch (error) {
      options.signal?.throwIfAborted();
      if (this.#closed.signal.aborted) throw new ImageFailure('interrupted', 'the host shut down');
      if (late.aborted) throw tookTooLong(error);
      if (error instanceof ImageFailure || error instanceof AppError) throw error;
      this.#deps.log.error(
        { reference: source.reference, err: toError(error) },
        'image:buildCrashed',
      );
      throw new ImageFailure('interrupted', 'the build failed on its host; try again', {
        cause: error,
      });
    }
  }

  /** Breaks every build off; resolves when nothing of them is left. */
  async close(): Promise<void> {
    this.#closed.abort(new ImageFailure('interrupted', 'the host shut down'));
    await Promise.allSettled([...this.#builds.values()].map(({ ended }) => ended));
  }

  async #bring(
    source: ImageSource,
    options: BringOptions & { readonly signal: AbortSignal },
  ): Promise<HeldImage> {
    const { digest } = source;
    const { signal, tree, forRegion = false, onProgress = () => undefined } = options;
    if (digest !== undefined && !forRegion) {
      const present = await this.#deps.store.hold(digest, { tree });
      if (present !== undefined) return present;
    }
    onProgress({ step: 'waiting', bytesDone: 0, bytesTotal: 0 });
    const build = await this.#identify(source, options);
    const from = this.#mayPull(options) ? 'anywhere' : 'region';
    if (build.resolved !== undefined && !(await this.#isOpenTo(build))) {
      await this.#build({ ...build, from: 'source' }, options);
    }
    for (;;) {
      const held = await this.#deps.store.hold(build.digest, { tree });
      if (held === undefined) {
        await this.#build({ ...build, from }, options);
        signal.throwIfAborted();
      } else {
        if (forRegion) await this.#bringToRegion({ ...build, from: 'registry' }, held, options);
        return held;
      }
    }
  }

  /** Whether a caller who got the manifest from this source may have what is here. */
  async #isOpenTo({ digest, source: { reference } }: Omit<Build, 'from'>): Promise<boolean> {
    const { store, region } = this.#deps;
    for (const each of [store, region]) {
      if (await wasPulledFrom(each.directoryOf(digest), reference)) return true;
    }
    return false;
  }

  #mayPull({ accountId }: BringOptions): boolean {
    return this.#deps.buildsMax > 0 || accountId === HOST_ACCOUNT;
  }

  async #identify(
    source: ImageSource,
    options: BringOptions & { readonly signal: AbortSignal },
  ): Promise<Omit<Build, 'from'>> {
    const { digest } = source;
    if (digest !== undefined) return { digest, source, resolved: undefined };
    if (!this.#mayPull(options)) throw notEnabled();
    const resolved = await this.#resolve(source, options);
    return { digest: resolved.digest, source, resolved };
  }

  /** An image that only this host has would be lost with it, or with its eviction here. */
  async #bringToRegion(
    build: Build,
    held: HeldImage,
    options: BringOptions & { readonly signal: AbortSignal },
  ): Promise<void> {
    try {
      if (await this.#deps.region.has(build.digest, options.signal)) return;
      await this.#build(build, options);
      options.signal.throwIfAborted();
    } catch (error) {
      held.release();
      throw error;
    }
  }

  async #resolve(
    source: ImageSource,
    { accountId, signal, onProgress }: BringOptions & { readonly signal: AbortSignal },
  ): Promise<ResolvedImage> {
    const turn = await this.#turns.acquire(accountId, signal);
    try {
      onProgress?.({ step: 'resolving', bytesDone: 0, bytesTotal: 0 });
      return await this.#withRegistry(source, (registry) =>
        resolveImage(registry, this.#deps, signal),
      );
    } finally {
      turn.release();
    }
  }

  async #withRegistry<T>(
    { reference, credentials }: ImageSource,
    work: (registry: RegistryClient) => Promise<T>,
  ): Promise<T> {
    const registry = await RegistryClient.open(
      this.#deps,
      parseImageReference(reference),
      credentials,
    );
    try {
      return await work(registry);
    } finally {
      registry.close();
    }
  }

  /** Joins the build of this digest from this source, or begins it. */
  async #build(
    build: Build,
    { accountId, signal, onProgress }: BringOptions & { readonly signal: AbortSignal },
  ): Promise<void> {
    const key = buildKey(build);
    let work = this.#builds.get(key);
    if (work?.isAbandoned === true) await work.ended.catch(() => undefined);
    work = this.#builds.get(key);
    if (work === undefined) {
      work = new SharedWork<BuildProgress>((shared, report) =>
        this.#produceInTime(build, { signal: shared, onProgress: report }),
      );
      this.#builds.set(key, work);
      // Also when it got no turn: otherwise this image could never be built here again.
      const forget = (): boolean => this.#builds.delete(key);
      work.ended.then(forget, forget);
    }
    const acquire = (wait: AbortSignal): Promise<Turn> => this.#turns.acquire(accountId, wait);
    await work.join({ signal, acquire, onProgress });
  }

  /** However many callers join the build, and however late: it has a time of its own. */
  async #produceInTime(build: Build, { signal, onProgress }: BuildRun): Promise<void> {
    const late = AbortSignal.timeout(IMAGE_LIMITS.imageBuildMsMax);
    try {
      await this.#produce(build, { signal: AbortSignal.any([signal, late]), onProgress });
    } catch (cause) {
      throw late.aborted ? tookTooLong(cause) : cause;
    }
  }

  async #produce(
    { digest, source, resolved, from }: Build,
    { signal, onProgress }: BuildRun,
  ): Promise<void> {
    const { storage, store, region } = this.#deps;
    storage.refuseIfLow();
    const isThere = from === 'registry' ? await region.has(digest, signal) : store.has(digest);
    if (isThere && from !== 'source') return; // Built by another build in the meantime.
    const full = new AbortController();
    const timer = setInterval(() => {
      if (!storage.isLow) return;
      full.abort(
        new ImageFailure('interrupted', 'the storage of the host is almost full; try again'),
      );
    }, LOOK_MS);
    const run = { signal: AbortSignal.any([signal, full.signal]), onProgress };
    try {
      const isRegional = from === 'anywhere' || from === 'region';
      if (isRegional && (await buildFromRegion(this.#deps, digest, run))) return;
      if (from === 'region') throw notEnabled();
      await this.#withRegistry(source, async (registry) => {
        const image = resolved ?? (await resolveImage(registry, this.#deps, run.signal, digest));
        await buildFromRegistry(this.#deps, registry, image, run);
      });
      for (const each of [store, region]) {
        await notePulledFrom(each.directoryOf(digest), source.reference);
      }
    } finally {
      clearInterval(timer);
    }
  }
}
