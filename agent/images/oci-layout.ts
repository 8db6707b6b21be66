import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { chown, lstat, mkdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { errnoOf } from '../../shared/errors.ts';
import { IMAGE_LIMITS } from './limits.ts';
import { readFileWithin } from '../system/read-file-within.ts';
import { ImageFailure } from './image-source.ts';
import { type OciDescriptor, type OciManifest, toOciManifest } from './oci-manifest.ts';

const INDEX = 'index.json';
/** The name of the one image in a layout. */
export const LAYOUT_TAG = 'image';

export const digestOf = (bytes: string | Buffer): string =>
  `sha256:${createHash('sha256').update(bytes).digest('hex')}`;

const hexOf = (digest: string): string => digest.slice('sha256:'.length);

const blobPath = (layout: string, digest: string): string =>
  join(layout, 'blobs/sha256', hexOf(digest));

/** Reads a small blob of a layout. @throws ImageFailure `interrupted` unless it has its digest */
async function readBlob(layout: string, digest: string, bytesMax: number): Promise<string> {
  const bytes = await readFileWithin(blobPath(layout, digest), bytesMax);
  if (digestOf(bytes) === digest) return bytes.toString('utf8');
  throw new ImageFailure('interrupted', `a stored part of the image is damaged: ${digest}`);
}

/**
 * Makes an OCI layout of what skopeo has pulled, without copying it. Nothing else of the directory
 * is taken, and nothing that is no plain file.
 * @param pulled a directory that skopeo's user could write to; nothing runs as that user there any
 *   more
 */
export async function makeLayout(
  layout: string,
  pulled: string,
  manifest: OciManifest,
): Promise<void> {
  await mkdir(join(layout, 'blobs/sha256'), { recursive: true, mode: 0o700 });
  const parts = new Map([manifest.config, ...manifest.layers].map((part) => [part.digest, part]));
  for (const part of parts.values()) await take(layout, pulled, part);
  const text = toOciManifest(manifest);
  await writeFile(blobPath(layout, digestOf(text)), text);
  await writeFile(join(layout, INDEX), indexOf(manifest));
  await writeFile(join(layout, 'oci-layout'), JSON.stringify({ imageLayoutVersion: '1.0.0' }));
}

/** The index of a layout, which names its one manifest. Pure. */
function indexOf(manifest: OciManifest): string {
  const text = toOciManifest(manifest);
  const described = {
    mediaType: 'application/vnd.oci.image.manifest.v1+json',
    digest: digestOf(text),
    size: Buffer.byteLength(text),
    annotations: { 'org.opencontainers.image.ref.name': LAYOUT_TAG },
  };
  return JSON.stringify({ schemaVersion: 2, manifests: [described] });
}

/**
 * Checks that a layout is of this manifest; umoci checks all that the layout names by digest.
 * @throws ImageFailure `interrupted`
 */
export async function checkLayout(layout: string, manifest: OciManifest): Promise<void> {
  const expected = indexOf(manifest);
  const found = await readFileWithin(join(layout, INDEX), expected.length);
  if (found.toString('utf8') === expected) return;
  throw new ImageFailure('interrupted', 'the stored image is damaged');
}

/**
 * Reads every blob of a layout. @returns whether each has its digest
 * @throws the signal's reason; system errors when one cannot be read, but for one that is missing
 */
export async function isWhole(
  layout: string,
  { config, layers }: OciManifest,
  signal: AbortSignal,
): Promise<boolean> {
  for (const { digest } of [config, ...layers]) {
    const hash = createHash('sha256');
    try {
      await pipeline(createReadStream(blobPath(layout, digest)), hash, { signal });
    } catch (error) {
      signal.throwIfAborted();
      if (errnoOf(error) === 'ENOENT') return false;
      throw error;
    }
    if (hash.digest('hex') !== hexOf(digest)) return false;
  }
  return true;
}

async function take(layout: string, pulled: string, part: OciDescriptor): Promise<void> {
  const to = blobPath(layout, part.digest);
  try {
    await rename(join(pulled, hexOf(part.digest)), to);
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error;
    throw new ImageFailure('interrupted', 'the registry did not send all of the image', {
      cause: error,
    });
  }
  const found = await lstat(to);
  if (!found.isFile() || found.size !== part.size) {
    throw new ImageFailure(
      'invalid_source',
      `a part of the image has ${found.size} bytes, not ${part.size}`,
    );
  }
  await chown(to, 0, 0);
}

/** The configuration of a layout's image, as the registry had it. */
export const readConfig = (layout: string, { config }: OciManifest): Promise<string> =>
  readBlob(layout, config.digest, IMAGE_LIMITS.imageConfigBytesMax);
