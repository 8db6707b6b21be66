import assert from 'node:assert';
import { DIRECTORY_LIMITS } from '../../shared/directory/limits.ts';
import { KiB, MINUTE_MS, MiB } from '../../shared/units.ts';

/** Limits of images. */
export const IMAGE_LIMITS = {
  imageLayersMax: 256,
  imagePlatformsMax: 256, // In one index.
  imageManifestBytesMax: 4 * MiB,
  imageConfigBytesMax: 4 * MiB,
  imageEnvironmentBytesMax: 64 * KiB,
  // With those of a sandbox, no more than a guest takes (GUEST_LIMITS).
  imageVariablesMax: 1024,
  imageBuildMsMax: 15 * MINUTE_MS,
  imageBuildsWaitingMax: 64, // On one host.
  imageBuildsWaitingPerAccountMax: 16,
  // A host that builds an image renews its claim this often.
  imageBuildRenewMs: 2_000,
} as const;

assert(IMAGE_LIMITS.imageBuildRenewMs * 3 < DIRECTORY_LIMITS.imageBuildTtlMs);
