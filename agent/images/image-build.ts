import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from '../../shared/log.ts';
import { toError } from '../../shared/errors.ts';
import { failpoint } from '../system/failpoint.ts';
import type { HostGroups } from '../system/helper-group.ts';
import type { BuildProgress } from './image-source.ts';
import { makeImageDisk } from './image-disk.ts';
import type { ImageStore } from './image-store.ts';
import { digestOf, makeLayout, readConfig } from './oci-layout.ts';
import { chooseManifest, isIndex, parseConfig, parseManifest, totalBytes } from './oci-manifest.ts';
import type { ImageDocuments, RegionStore, StoredImage } from './region-store.ts';
import type { RegistryClient, RegistryClientDeps } from './registry-client.ts';

/** Dependencies of builds on a host. */
export interface BuildDeps extends RegistryClientDeps {
  readonly groups: HostGroups;
  readonly store: ImageStore;
  readonly region: RegionStore;
  /** Limit of an image, compressed and unpacked. */
  readonly bytesMax: number;
  /** Virtual size of root disks. */
  readonly diskBytes: number;
  /** The first loop device number that belongs to this host (LoopDevices). */
  readonly firstLoop: number;
  readonly log: Logger;
}

export interface BuildRun {
  readonly signal: AbortSignal;
  readonly onProgress: (progress: BuildProgress) => void;
}

/** The documents that a registry has under a reference, before any layer is pulled. */
export interface ResolvedImage extends ImageDocuments {
  readonly digest: string;
}

/** Resolves a reference at its registry, which answers only callers who may pull the image. */
export async function resolveImage(
  registry: RegistryClient,
  { platform }: Pick<BuildDeps, 'platform'>,
  signal: AbortSignal,
  known?: string,
): Promise<ResolvedImage> {
  const text = await registry.readManifest(signal, known);
  const digest = digestOf(text);
  if (!isIndex(text)) return { digest, index: undefined, manifest: text };
  const manifest = await registry.readManifest(signal, chooseManifest(text, platform));
  return { digest, index: text, manifest };
}

/**
 * Pulls an image, unpacks it unless this host has it, and keeps it for this host and its region.
 */
export async function buildFromRegistry(
  deps: BuildDeps,
  registry: RegistryClient,
  image: ResolvedImage,
  { signal, onProgress }: BuildRun,
): Promise<void> {
  const { region, uid, bytesMax } = deps;
  const manifest = parseManifest(image.manifest, bytesMax);
  const bytesTotal = totalBytes(manifest);
  const report = (bytesDone: number): void =>
    onProgress({ step: 'pulling', bytesDone, bytesTotal });
  report(0);
  const pulling = await region.begin(uid);
  try {
    const { directory, pulled } = pulling;
    const digest = digestOf(image.manifest);
    await failpoint('pull image', () =>
      registry.pull(digest, pulled, bytesTotal, { signal, onBytes: report }),
    );
    await makeLayout(directory, pulled, manifest);
    if (!deps.store.has(image.digest)) {
      const pulledImage = { layout: directory, manifest };
      await buildFromLayout(deps, image.digest, pulledImage, { signal, onProgress });
    }
    onProgress({ step: 'storing', bytesDone: 0, bytesTotal: 0 });
    await region.keep(pulling, image);
  } finally {
    await region.discard(pulling);
  }
}

/** Unpacks an image that lies on the storage. */
async function buildFromLayout(
  deps: BuildDeps,
  digest: string,
  { layout, manifest }: StoredImage,
  { signal, onProgress }: BuildRun,
): Promise<void> {
  const { store, groups, platform, diskBytes, bytesMax, firstLoop } = deps;
  const config = parseConfig(await readConfig(layout, manifest), manifest, platform);
  const report = (bytesDone: number): void =>
    onProgress({ step: 'unpacking', bytesDone, bytesTotal: 0 });
  report(0);
  const partial = await store.newPartial();
  try {
    const path = store.diskOf(partial);
    const mountPoint = join(partial, 'unpacking');
    const spec = { path, mountPoint, sizeBytes: diskBytes, bytesMax, firstLoop };
    await failpoint('unpack image', () =>
      makeImageDisk(groups, layout, spec, { signal, onBytes: report }),
    );
    await store.add(partial, { digest, platform, config });
  } finally {
    await rm(partial, { recursive: true, force: true });
  }
}

/**
 * Builds from the region's store.
 * @returns false when it does not have the image, or not intact
 * @throws what this host could not do with the intact image, which other hosts may need
 */
export async function buildFromRegion(
  deps: BuildDeps,
  digest: string,
  run: BuildRun,
): Promise<boolean> {
  const { region, log } = deps;
  try {
    const stored = await region.find(digest);
    if (stored === undefined) return false;
    await buildFromLayout(deps, digest, stored, run);
    return true;
  } catch (error) {
    run.signal.throwIfAborted();
    log.warn({ digest, err: toError(error) }, 'image:storedUnusable');
    if (await region.removeIfDamaged(digest, run.signal)) return false;
    throw error;
  }
}
