import { RegionStorage } from '../../agent/system/region-storage.ts';

/** A directory as the storage of a region that has this host only. */
export const regionStorage = (directory: string, dataDir = directory): RegionStorage =>
  new RegionStorage({ directory, dataDir, isFirstHost: async () => true });
