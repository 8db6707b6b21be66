/*
 * Images of a host that has no registry: a test says what each reference means, and when it comes.
 */
import { type BuiltImage, type HeldImage } from '../../agent/images/built-image.ts';
import {
  type BringOptions,
  type ImageBringer,
  ImageFailure,
  type ImageSource,
} from '../../agent/images/image-source.ts';
import { SandboxImages } from '../../agent/sandboxes/holds/sandbox-images.ts';

export const DIGEST = `sha256:${'a'.repeat(64)}`;

export const builtImage = (changes: Partial<BuiltImage> = {}): BuiltImage => ({
  digest: DIGEST,
  platform: 'amd64',
  config: { env: { FROM_IMAGE: 'yes' }, workingDir: '/app', user: 'node' },
  rootDisk: '/images/built/root.ext4',
  tree: '/images/built/tree',
  ...changes,
});

export class InMemoryImages implements ImageBringer {
  /** Those that the host has, by digest. */
  readonly present = new Map<string, BuiltImage>();
  /** How many hold each image now. */
  readonly holds = new Map<string, number>();
  readonly brought: ImageSource[] = [];
  /** The result of building an image; by default it never ends. */
  build: (source: ImageSource) => Promise<BuiltImage> = () => new Promise(() => undefined);

  /** Opens the images like an agent; another agent of the same host holds nothing yet. */
  open(): SandboxImages {
    this.holds.clear();
    return new SandboxImages({ store: this, builder: this, tree: false });
  }

  async hold(digest: string): Promise<HeldImage | undefined> {
    const image = this.present.get(digest);
    return image === undefined ? undefined : this.#hold(image);
  }

  async bring(source: ImageSource, { signal }: BringOptions): Promise<HeldImage> {
    this.brought.push(source);
    const aborted = new Promise<never>((_, reject) => {
      signal?.addEventListener('abort', () => reject(signal.reason as Error), { once: true });
    });
    const image = await Promise.race([this.build(source), aborted]);
    this.present.set(image.digest, image);
    return this.#hold(image);
  }

  static refuse(): Promise<never> {
    return Promise.reject(new ImageFailure('invalid_source', 'the registry has no such image'));
  }

  #hold(image: BuiltImage): HeldImage {
    const { digest } = image;
    this.holds.set(digest, (this.holds.get(digest) ?? 0) + 1);
    let isHeld = true;
    return {
      image,
      release: () => {
        if (isHeld) this.holds.set(digest, (this.holds.get(digest) ?? 0) - 1);
        isHeld = false;
      },
    };
  }
}
