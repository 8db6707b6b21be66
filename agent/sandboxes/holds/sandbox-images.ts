import type { BuiltImage, HeldImage } from '../../images/built-image.ts';
import type { HostImages } from '../../images/open-images.ts';

interface SandboxImagesDeps {
  readonly store: Pick<HostImages['store'], 'hold'>;
  readonly builder: HostImages['builder'];
  /** Whether machines need the image as a directory; otherwise they need it as a disk. */
  readonly tree: boolean;
}

/**
 * The images that the sandboxes and prewarmed machines of a host hold. Each holds its own for as
 * long as it exists, so that no image is removed from under a disk.
 */
export class SandboxImages {
  readonly #deps: SandboxImagesDeps;
  readonly #held = new Map<string, HeldImage>();

  constructor(deps: SandboxImagesDeps) {
    this.#deps = deps;
  }

  /** The image that a sandbox or prewarmed machine holds. */
  heldBy(owner: string): BuiltImage | undefined {
    return this.#held.get(owner)?.image;
  }

  /** Holds an image until {@link release}. @returns undefined when this host does not have it */
  async hold(owner: string, digest: string): Promise<BuiltImage | undefined> {
    const known = this.heldBy(owner);
    if (known?.digest === digest) return known;
    const held = await this.#deps.store.hold(digest, { tree: this.#deps.tree });
    return held === undefined ? undefined : this.#keep(owner, held);
  }

  /**
   * Brings an image to this host and holds it until {@link release}.
   * @throws ImageFailure; AppError `no_capacity`, `not_enabled`; the signal's reason
   */
  async bring(
    owner: string,
    source: { readonly reference: string; readonly digest?: string | undefined },
    by: { readonly accountId: string; readonly signal: AbortSignal },
  ): Promise<BuiltImage> {
    const { tree, builder } = this.#deps;
    const held = await builder.bring(source, { ...by, tree });
    if (by.signal.aborted) {
      held.release();
      by.signal.throwIfAborted();
    }
    return this.#keep(owner, held);
  }

  release(owner: string): void {
    this.#held.get(owner)?.release();
    this.#held.delete(owner);
  }

  #keep(owner: string, held: HeldImage): BuiltImage {
    this.release(owner);
    this.#held.set(owner, held);
    return held.image;
  }
}
