import { stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { repeatInBackground } from '../../shared/background.ts';
import type { Logger } from '../../shared/log.ts';
import type { StorageWatch } from '../../shared/storage-watch.ts';
import { DAY_MS, GiB } from '../../shared/units.ts';
import type { HostGroups } from '../system/helper-group.ts';
import { paths } from '../system/paths.ts';
import type { RegionStorage } from '../system/region-storage.ts';
import { hostPlatform, openDefaultImage } from './default-image.ts';
import { ImageBuilder } from './image-builder.ts';
import { ImageEviction } from './image-eviction.ts';
import type { ImageBringer } from './image-source.ts';
import { ImageStore } from './image-store.ts';
import { RegionStore } from './region-store.ts';
import { forgetUse, noteUse, touchUse } from './note-use.ts';
import { type KnownRegistry, RegistryRules } from './registry-rules.ts';

/** Size of root disks on a host that has no default root disk, whose size they take otherwise. */
const DISK_BYTES = 32 * GiB;

/** Settings of images (docs/settings.md, Agent). */
export interface ImageSettings {
  /** Root directory of the default image. */
  readonly defaultImageDir: string;
  /** The default image as a disk image; undefined on hosts that need none. */
  readonly defaultRootDisk: string | undefined;
  /** Kernel and initramfs of sandboxes; undefined on hosts that need none. */
  readonly guestDir: string | undefined;
  /** Maximum of simultaneous builds; 0: this host builds none for callers. */
  readonly buildsMax: number;
  /** Maximum size of one image in bytes, compressed and also unpacked. */
  readonly bytesMax: number;
  /** Registries that builds reach wherever they are. */
  readonly registries: readonly KnownRegistry[];
  /** How long an unused image is kept, in milliseconds. */
  readonly keepMs: number;
  /** Uid of the processes that read from registries. */
  readonly uid: number;
}

export interface ImageParts extends HostGroups {
  readonly hostId: string;
  readonly dataDir: string;
  /** Where the region's images lie. */
  readonly region: RegionStorage;
  /** The first loop device number that belongs to this host (LoopDevices). */
  readonly firstLoop: number;
  readonly storage: Pick<StorageWatch, 'spaceOf' | 'reserveBytes' | 'isLow' | 'refuseIfLow'>;
  readonly clusterAddresses: () => Promise<readonly string[]>;
  readonly log: Logger;
}

/** The images of a host: those that it has, and the way to others. */
export interface HostImages {
  readonly store: ImageStore;
  readonly builder: ImageBringer;
  /** Builds that run or wait, and how many run at the same time; 0: this host builds none. */
  readonly load: { readonly active: number; readonly max: number };
  /** Begins to remove images that nobody holds. Before that, recovery must have held its own. */
  startEviction(): void;
  close(): Promise<void>;
}

export async function openImages(settings: ImageSettings, parts: ImageParts): Promise<HostImages> {
  const { defaultImageDir, defaultRootDisk, guestDir, registries, keepMs, buildsMax, ...limits } =
    settings;
  const { hostId, dataDir, storage, clusterAddresses, ...shared } = parts;
  const { firstLoop, log, cgroups, cgroupParent } = shared;
  const platform = hostPlatform();
  const defaultImage = await openDefaultImage(defaultImageDir, defaultRootDisk);
  const directory = paths.images(dataDir);
  const store = await ImageStore.open({ directory, defaultImage, firstLoop, log });
  const region = new RegionStore(parts.region, hostId, platform);
  // Storage that does not answer does not keep the host from starting.
  const stopRemoving = repeatInBackground('image.removeLeftovers', DAY_MS, () =>
    region.removeLeftovers(),
  );
  const diskBytes = await stat(defaultImage.rootDisk).then(
    ({ size }) => size,
    () => DISK_BYTES,
  );
  const entry = dirname(defaultImageDir);
  const stopNoting = repeatInBackground('image.noteUse', DAY_MS, async () => {
    await noteUse(entry, { hostId, dataDir });
    if (guestDir !== undefined) await touchUse(guestDir);
  });
  const builder = new ImageBuilder({
    ...{ ...limits, store, region, platform, diskBytes, firstLoop, storage, log },
    groups: { cgroups, cgroupParent },
    rules: new RegistryRules(registries, clusterAddresses),
    buildsMax,
  });
  const directories = { own: dataDir, region: parts.region.directory };
  const eviction = new ImageEviction({ store, region, storage, directories, keepMs, log });
  return {
    ...{ store, builder },
    get load() {
      return { active: builder.active, max: buildsMax };
    },
    startEviction: () => eviction.start(),
    async close() {
      stopNoting();
      stopRemoving();
      eviction.close();
      await builder.close();
      await store.close();
      await forgetUse(entry, { hostId, dataDir });
    },
  };
}
