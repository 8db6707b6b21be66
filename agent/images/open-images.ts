import { openDefaultImage } from './default-image.ts';
import { ImageBuilder } from './image-builder.ts';
import type { ImageBringer } from './image-source.ts';
import { ImageStore } from './image-store.ts';

export interface ImagesSettings {
  /** Root directory of the default image. */
  readonly defaultImageDir: string;
  /** The same as a disk; undefined on hosts that need none. */
  readonly defaultRootDisk: string | undefined;
}

/** The images of a host: those that it has, and the way to others. */
export interface HostImages {
  readonly store: ImageStore;
  readonly builder: ImageBringer;
}

export async function openImages(settings: ImagesSettings): Promise<HostImages> {
  const { defaultImageDir, defaultRootDisk } = settings;
  const store = new ImageStore(await openDefaultImage(defaultImageDir, defaultRootDisk));
  return { store, builder: new ImageBuilder(store) };
}
