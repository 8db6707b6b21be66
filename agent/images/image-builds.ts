import { repeatInBackground, runInBackground } from '../../shared/background.ts';
import type { ImageBuildRef, ImageOutcome, Images } from '../../shared/directory/images.ts';
import { AppError, toError } from '../../shared/errors.ts';
import { IMAGE_LIMITS } from './limits.ts';
import type { Logger } from '../../shared/log.ts';
import { repeatUntilDone } from '../system/queues/until-done.ts';
import { failpoint } from '../system/failpoint.ts';
import type { HostImages } from './open-images.ts';
import { type BuildProgress, ImageFailure, type RegistryCredentials } from './image-source.ts';

interface BuildRequest extends ImageBuildRef {
  readonly accountId: string;
  readonly source: string;
  readonly credentials?: RegistryCredentials | undefined;
}

interface ImageBuildsDeps {
  readonly hostId: string;
  readonly images: HostImages;
  readonly directory: Images;
  readonly log: Logger;
}

/**
 * The builds that callers have asked for: keeps the directory's record of each up to date. The next
 * agent ends the builds of one that was killed. Until there is one, the claim on a build lapses,
 * and the record then says `interrupted` to whoever reads it.
 */
export class ImageBuilds {
  readonly #deps: ImageBuildsDeps;
  readonly #running = new Map<
    string,
    { readonly accountId: string; readonly ended: Promise<void> }
  >();
  readonly #closed = new AbortController();

  constructor(deps: ImageBuildsDeps) {
    this.#deps = deps;
  }

  /** Ends the builds of a former agent of this host. Before any other work. */
  async endFormer(): Promise<void> {
    const { directory, hostId, log } = this.#deps;
    try {
      await directory.endBuildsOf(hostId);
    } catch (error) {
      log.warn({ err: toError(error) }, 'image:formerBuildsNotEnded'); // Their claims will lapse.
    }
  }

  /**
   * Begins a build, and returns at once. Idempotent by its token.
   * @throws AppError `no_capacity`; `not_enabled` on a host that builds no images
   */
  begin(request: BuildRequest): void {
    const { token, accountId } = request;
    if (this.#running.has(token)) return;
    if (this.#deps.images.load.max === 0) {
      throw new AppError('not_enabled', 'this host builds no images: see IMAGE_BUILDS');
    }
    const own = [...this.#running.values()].filter((build) => build.accountId === accountId);
    if (
      this.#closed.signal.aborted ||
      this.#running.size >= IMAGE_LIMITS.imageBuildsWaitingMax ||
      own.length >= IMAGE_LIMITS.imageBuildsWaitingPerAccountMax
    ) {
      throw new AppError('no_capacity', 'too many builds of images wait on the host; try again');
    }
    const ended = Promise.withResolvers<void>();
    this.#running.set(token, { accountId, ended: ended.promise });
    runInBackground('image.build', async () => {
      try {
        await this.#build(request);
      } finally {
        this.#running.delete(token);
        ended.resolve();
      }
    });
  }

  /** Breaks every build off, and resolves when the directory says so. */
  async close(): Promise<void> {
    this.#closed.abort(new ImageFailure('interrupted', 'the host shut down'));
    await Promise.all([...this.#running.values()].map(({ ended }) => ended));
  }

  async #build({ imageId, token, accountId, source, credentials }: BuildRequest): Promise<void> {
    const { images, directory, log, hostId } = this.#deps;
    const ref = { imageId, token };
    await directory.noteBuild(hostId, ref).catch(() => undefined);
    const lost = new AbortController();
    const signal = AbortSignal.any([this.#closed.signal, lost.signal]);
    let progress: BuildProgress | undefined;
    const stopRenewing = repeatInBackground(
      'image.renew',
      IMAGE_LIMITS.imageBuildRenewMs,
      async () => {
        if (!(await directory.renew(ref, progress)))
          lost.abort(new Error('the build was taken over'));
      },
    );
    const begunAt = performance.now();
    let outcome: ImageOutcome;
    try {
      const onProgress = (at: BuildProgress): void => {
        progress = at;
      };
      const held = await images.builder.bring(
        { reference: source, credentials },
        { accountId, signal, onProgress, forRegion: true },
      );
      held.release();
      outcome = { digest: held.image.digest };
    } catch (error) {
      outcome = toFailure(error);
      log.warn({ imageId, source, err: toError(error).message }, 'image:buildFailed');
    }
    stopRenewing();
    const durationMs = Math.round(performance.now() - begunAt);
    log.info({ imageId, accountId, source, ...outcome, durationMs }, 'image:buildEnded');
    await failpoint('publish image', () => this.#publish(ref, outcome));
    await directory.forgetBuild(hostId, ref).catch(() => undefined); // Ended is ended.
  }

  /** Records the outcome; retries until the claim on the build has lapsed by itself. */
  async #publish(ref: ImageBuildRef, outcome: ImageOutcome): Promise<void> {
    const { directory, log } = this.#deps;
    const attempt = async (): Promise<boolean> => {
      try {
        await directory.end(ref, outcome);
        return true;
      } catch (error) {
        log.warn({ imageId: ref.imageId, err: toError(error) }, 'image:publishFailed');
        return false;
      }
    };
    if (!(await attempt())) {
      await repeatUntilDone(
        attempt,
        AbortSignal.any([this.#closed.signal, AbortSignal.timeout(IMAGE_LIMITS.imageBuildMsMax)]),
      );
    }
  }
}

function toFailure(error: unknown): ImageOutcome {
  if (error instanceof ImageFailure) return { reason: error.reason, message: error.message };
  if (error instanceof AppError) return { reason: 'interrupted', message: error.message };
  return { reason: 'interrupted', message: 'the build was broken off; try again' };
}
