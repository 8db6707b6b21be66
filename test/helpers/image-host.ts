import assert from 'node:assert';
import { randomBytes } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { type HostImages, type ImageSettings, openImages } from '../../agent/images/open-images.ts';
import { parseRegistry } from '../../agent/images/registry-rules.ts';
import { detectCgroups, removeCgroups } from '../../agent/system/cgroup.ts';
import { sweepLoops } from '../../agent/disks/mount.ts';
import { readEnvFile } from '../../scripts/env-file.ts';
import { paths } from '../../scripts/local-paths.ts';
import { createLogger } from '../../shared/log.ts';
import { regionStorage } from './region-storage.ts';
import { GiB, MiB } from '../../shared/units.ts';

/** Not of the range that any host of the tests gets by its hash. */
const FIRST_LOOP = 64_512;
const UID = 601_099_998;

/** The tree of the default image, once set-up has made it. */
export async function defaultImageDir(): Promise<string> {
  const known = process.env['DEFAULT_IMAGE_DIR'];
  const found = known ?? (await readEnvFile(paths.config))['DEFAULT_IMAGE_DIR'];
  assert(found !== undefined, 'there is no default image: run ./scripts/setup');
  return found;
}

/** The images of a host without the rest of it. */
export interface ImageHost extends HostImages {
  readonly dataDir: string;
  readonly storage: { reserveBytes: number; isLow: boolean };
}

/**
 * @param directory shared by the hosts of a region
 * @param settings besides what suits small images
 */
export async function openImageHost(
  directory: string,
  registries: readonly { readonly url: string }[],
  settings: Partial<ImageSettings> & {
    readonly name?: string;
    readonly clusterAddresses?: string[];
  } = {},
): Promise<ImageHost> {
  const { name = 'host-a', clusterAddresses = [], ...changed } = settings;
  const dataDir = join(directory, name);
  await mkdir(dataDir, { recursive: true, mode: 0o711 });
  const cgroups = await detectCgroups();
  const cgroupParent = `/berth-test-images/${randomBytes(6).toString('hex')}`;
  const storage = {
    ...{ reserveBytes: 1, isLow: false },
    spaceOf: () => undefined,
    refuseIfLow: () => undefined,
  };
  const images = await openImages(
    {
      defaultImageDir: await defaultImageDir(),
      defaultRootDisk: undefined,
      guestDir: undefined,
      ...{ buildsMax: 2, bytesMax: 64 * MiB, keepMs: GiB, uid: UID },
      registries: registries.flatMap(({ url }) => parseRegistry(url) ?? []),
      ...changed,
    },
    {
      ...{ hostId: name, dataDir, firstLoop: FIRST_LOOP, storage },
      region: regionStorage(directory, dataDir),
      ...{ cgroups, cgroupParent, log: createLogger('test', {}) },
      clusterAddresses: async () => clusterAddresses,
    },
  );
  return {
    ...images,
    dataDir,
    storage,
    async close() {
      await images.close();
      await removeCgroups(cgroups, cgroupParent);
      await sweepLoops(FIRST_LOOP);
    },
  };
}
