import {
  type BringOptions,
  type ImageBringer,
  ImageFailure,
  type ImageSource,
} from './image-source.ts';
import type { HeldImage } from './built-image.ts';
import type { ImageStore } from './image-store.ts';

/** Builds images on this host, a few at a time. */
export class ImageBuilder implements ImageBringer {
  readonly #store: ImageStore;

  constructor(store: ImageStore) {
    this.#store = store;
  }

  async bring(source: ImageSource, { tree }: BringOptions): Promise<HeldImage> {
    const held =
      source.digest === undefined ? undefined : await this.#store.hold(source.digest, { tree });
    if (held !== undefined) return held;
    throw new ImageFailure('invalid_source', `image ${source.reference} cannot be built yet`);
  }
}
