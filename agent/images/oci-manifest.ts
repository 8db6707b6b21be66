import { posix } from 'node:path';
import Type from 'typebox';
import { toError } from '../../shared/errors.ts';
import { parseJson } from '../../shared/json.ts';
import { IMAGE_LIMITS } from './limits.ts';
import { compile } from '../../shared/validate.ts';
import type { ImageConfig, ImagePlatform } from './built-image.ts';
import { ImageFailure } from './image-source.ts';

const OCI = 'application/vnd.oci.image';
const DOCKER = 'application/vnd.docker';
const CONFIG_TYPES = [`${OCI}.config.v1+json`, `${DOCKER}.container.image.v1+json`];
/** Layer types that umoci unpacks, with their OCI names. */
const LAYER_TYPES: ReadonlyMap<string, string> = new Map([
  [`${OCI}.layer.v1.tar`, `${OCI}.layer.v1.tar`],
  [`${OCI}.layer.v1.tar+gzip`, `${OCI}.layer.v1.tar+gzip`],
  [`${DOCKER}.image.rootfs.diff.tar`, `${OCI}.layer.v1.tar`],
  [`${DOCKER}.image.rootfs.diff.tar.gzip`, `${OCI}.layer.v1.tar+gzip`],
]);

const Digest = Type.String({ pattern: '^sha256:[0-9a-f]{64}$' });
const Descriptor = Type.Object({
  mediaType: Type.String({ maxLength: 255 }),
  digest: Digest,
  size: Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }),
});
const Platform = Type.Object({
  os: Type.String({ maxLength: 255 }),
  architecture: Type.String({ maxLength: 255 }),
});
const Index = Type.Object({
  manifests: Type.Array(Type.Object({ digest: Digest, platform: Type.Optional(Platform) }), {
    maxItems: IMAGE_LIMITS.imagePlatformsMax,
  }),
});
const Manifest = Type.Object({
  config: Descriptor,
  layers: Type.Array(Descriptor, { maxItems: IMAGE_LIMITS.imageLayersMax }),
});
const Config = Type.Object({
  os: Type.String({ maxLength: 255 }),
  architecture: Type.String({ maxLength: 255 }),
  config: Type.Optional(
    Type.Union([
      Type.Null(),
      Type.Object({
        Env: Type.Optional(Type.Union([Type.Null(), Type.Array(Type.String())])),
        WorkingDir: Type.Optional(Type.String({ maxLength: 4096 })),
        User: Type.Optional(Type.String()),
      }),
    ]),
  ),
  rootfs: Type.Object({ diff_ids: Type.Array(Digest, { maxItems: IMAGE_LIMITS.imageLayersMax }) }),
});

const checkIndex = compile(Index);
const checkManifest = compile(Manifest);
const checkConfig = compile(Config);

export type OciDescriptor = Type.Static<typeof Descriptor>;
export type OciManifest = Type.Static<typeof Manifest>;

/** Reads what a registry sent: anything may stand there. @throws ImageFailure `invalid_source` */
function read<T>(text: string, check: (value: unknown, name: string) => T, what: string): T {
  try {
    return check(parseJson(text), what);
  } catch (error) {
    throw new ImageFailure(
      'invalid_source',
      `the ${what} is not valid: ${toError(error).message}`,
      {
        cause: error,
      },
    );
  }
}

/** Whether a document of the registry lists several platforms. */
export function isIndex(text: string): boolean {
  const value = read(text, (parsed) => parsed, 'manifest');
  return typeof value === 'object' && value !== null && 'manifests' in value;
}

/** The digest of the manifest for this platform. @throws ImageFailure naming the others */
export function chooseManifest(indexText: string, platform: ImagePlatform): string {
  const { manifests } = read(indexText, checkIndex, 'image index');
  const found = manifests.find(
    (each) => each.platform?.os === 'linux' && each.platform.architecture === platform,
  );
  if (found !== undefined) return found.digest;
  const known = manifests.flatMap((each) =>
    each.platform === undefined ? [] : [`${each.platform.os}/${each.platform.architecture}`],
  );
  const offered = [...new Set(known)].slice(0, 16).join(', ') || 'none';
  throw new ImageFailure(
    'invalid_source',
    `the image is not for linux/${platform}, only for: ${offered}`,
  );
}

/** @throws ImageFailure when it is no image that can be unpacked, or larger than allowed */
export function parseManifest(text: string, bytesMax: number): OciManifest {
  const manifest = read(text, checkManifest, 'manifest');
  const { config, layers } = manifest;
  if (!CONFIG_TYPES.includes(config.mediaType)) {
    throw new ImageFailure(
      'invalid_source',
      `the manifest is of no image but of ${config.mediaType}`,
    );
  }
  const strange = layers.find(({ mediaType }) => !LAYER_TYPES.has(mediaType));
  if (strange !== undefined) {
    const message = `layers of type ${strange.mediaType} are not supported; use tar or tar+gzip`;
    throw new ImageFailure('invalid_source', message);
  }
  if (config.size > IMAGE_LIMITS.imageConfigBytesMax || totalBytes(manifest) > bytesMax) {
    throw tooLarge(bytesMax);
  }
  return manifest;
}

export const tooLarge = (bytesMax: number): ImageFailure =>
  new ImageFailure(
    'invalid_source',
    `the image is larger than ${bytesMax} bytes, which is the most allowed here`,
  );

/** Compressed. */
export const totalBytes = ({ config, layers }: OciManifest): number =>
  layers.reduce((sum, { size }) => sum + size, config.size);

/** The same manifest as OCI spells it: registries also have Docker's spelling. */
export const toOciManifest = ({ config, layers }: OciManifest): string =>
  JSON.stringify({
    schemaVersion: 2,
    mediaType: `${OCI}.manifest.v1+json`,
    config: { ...descriptor(config), mediaType: CONFIG_TYPES[0] },
    layers: layers.map((layer) => ({
      ...descriptor(layer),
      mediaType: LAYER_TYPES.get(layer.mediaType),
    })),
  });

const descriptor = ({ digest, size }: OciDescriptor) => ({ digest, size });

/**
 * How processes in the image start.
 * @throws ImageFailure when the image is for another platform, or the configuration cannot be kept
 */
export function parseConfig(
  text: string,
  { layers }: OciManifest,
  platform: ImagePlatform,
): ImageConfig {
  const { os, architecture, config, rootfs } = read(text, checkConfig, 'image configuration');
  if (os !== 'linux' || architecture !== platform) {
    const message = `the image is for ${os}/${architecture}, not for linux/${platform}`;
    throw new ImageFailure('invalid_source', message);
  }
  if (rootfs.diff_ids.length !== layers.length) {
    throw new ImageFailure('invalid_source', 'configuration and manifest differ in their layers');
  }
  const { Env, WorkingDir = '', User = '' } = config ?? {};
  return { env: environmentOf(Env ?? []), workingDir: directoryOf(WorkingDir), user: userOf(User) };
}

function environmentOf(entries: readonly string[]): Record<string, string> {
  const bytes = entries.reduce((sum, entry) => sum + Buffer.byteLength(entry) + 1, 0);
  if (
    bytes > IMAGE_LIMITS.imageEnvironmentBytesMax ||
    entries.some((entry) => entry.includes('\0'))
  ) {
    throw new ImageFailure('invalid_source', 'the ENV of the image is too long or contains NUL');
  }
  if (entries.length > IMAGE_LIMITS.imageVariablesMax) {
    const message = `the ENV of the image has more than ${IMAGE_LIMITS.imageVariablesMax} variables`;
    throw new ImageFailure('invalid_source', message);
  }
  const pairs = entries.flatMap((entry): [string, string][] => {
    const at = entry.indexOf('=');
    return at > 0 ? [[entry.slice(0, at), entry.slice(at + 1)]] : [];
  });
  return Object.fromEntries(pairs);
}

function directoryOf(path: string): string {
  if (path.includes('\0')) {
    throw new ImageFailure('invalid_source', 'the WORKDIR of the image contains NUL');
  }
  return posix.resolve('/', path);
}

function userOf(user: string): string {
  const name = '[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\\$?';
  if (user === '' || new RegExp(`^${name}(?::${name})?$`, 'u').test(user)) return user;
  throw new ImageFailure('invalid_source', 'the USER of the image is not a user or user:group');
}
