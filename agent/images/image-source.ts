import type { BuildStep, ImageFailureReason } from '../../shared/schemas/image.ts';
import type { HeldImage } from './built-image.ts';

export interface RegistryCredentials {
  readonly username: string;
  readonly password: string;
}

/** An image to bring to this host. */
export interface ImageSource {
  /** Normalised: registry, repository, and tag or digest (`shared/image-reference.ts`). */
  readonly reference: string;
  /**
   * Digest of the image, for a caller who knows it. It must then have the right to use it: an image
   * that this host or its region has is taken without asking the registry. Undefined: the registry
   * says what the reference means, and whether its owner lets everybody have it.
   */
  readonly digest?: string | undefined;
  /** Used for this build alone and never kept. */
  readonly credentials?: RegistryCredentials | undefined;
}

/**
 * How far a build is. Bytes are of the step: compressed while pulling, of the disk while unpacking.
 */
export interface BuildProgress {
  readonly step: BuildStep;
  readonly bytesDone: number;
  /** 0 while it is not known. */
  readonly bytesTotal: number;
}

/** Stands for the host itself where an account is named. */
export const HOST_ACCOUNT = 'host';

export interface BringOptions {
  /** Whose share of the host's builds this one counts against. */
  readonly accountId: string;
  /** Gives the build up, unless others wait for the same image. */
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: BuildProgress) => void) | undefined;
  /** Also mount the tree, for containers. */
  readonly tree?: boolean | undefined;
  /** Also see to it that the region has the image, for its other hosts. */
  readonly forRegion?: boolean | undefined;
}

/** Brings images to this host. */
export interface ImageBringer {
  /**
   * Provides the image, held: from this host, the region's store, or the registry, in this order.
   * @throws ImageFailure when there will be none; AppError `no_capacity` when too many builds wait,
   *   `not_enabled` when the host builds none for callers; the signal's reason
   */
  bring(source: ImageSource, options: BringOptions): Promise<HeldImage>;
}

/** An image that could not be built. The message is for the caller, and names no secret. */
export class ImageFailure extends Error {
  /** `interrupted`: the same build may succeed later. `invalid_source`: not with this source. */
  readonly reason: ImageFailureReason;

  constructor(reason: ImageFailure['reason'], message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'ImageFailure';
    this.reason = reason;
  }
}
