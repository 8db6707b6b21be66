import { chmod, chown, link, mkdir, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import Type from 'typebox';
import { AppError } from '../../../../shared/errors.ts';
import { compile } from '../../../../shared/validate.ts';
import { failpoint } from '../../../system/failpoint.ts';
import { syncPath, writeDurably } from '../../../system/write-durably.ts';
import { listNames } from '../process/machine-directory.ts';
import { addRootDisk, isEmptyLayer, prepareRootDisk } from './root-disk.ts';
import { readRecord } from '../../../system/read-record.ts';

/*
 * The layers of a root disk, each a file in the sandbox's directory of disks. Layers that forks
 * share are frozen: they belong to root and are never written to. They are shared as hard links, so
 * a file is gone when the last sandbox that uses it is.
 */

const FIRST_LAYER = 'root.qcow2';
const NAME = 'chain.json';
const layerPattern = '^[a-z0-9-]{1,40}\\.qcow2$';
/** Bounded because QEMU opens every layer of a machine's disk. */
const LAYERS_MAX = 96;

const Chain = Type.Object({
  layers: Type.Array(Type.String({ pattern: layerPattern }), { minItems: 1, maxItems: 128 }),
});
const parse = compile(Chain);

const newLayerName = (): string => `layer-${randomBytes(8).toString('hex')}.qcow2`;

/** The layers of a disk, from the oldest to the top layer. */
export const readChain = async (directory: string): Promise<string[]> =>
  (await readRecord(join(directory, NAME), parse))?.layers ?? [FIRST_LAYER];

const writeChain = (directory: string, layers: readonly string[]): Promise<void> =>
  writeDurably(directory, NAME, JSON.stringify({ layers }));

/** Whether the disk was ever made. */
export async function hasDisk(directory: string): Promise<boolean> {
  const names = await listNames(directory);
  return names.includes(NAME) || names.includes(FIRST_LAYER);
}

/** Makes the first layer, unless the disk exists. */
export async function prepareDisk(directory: string, base: string, uid: number): Promise<void> {
  const layers = await readChain(directory);
  if (layers.length > 1) return;
  await prepareRootDisk(directory, FIRST_LAYER, base, uid);
}

/**
 * A disk that is split: a copy gets the layers below `fresh`, the disk itself writes to `fresh`.
 */
export interface Split {
  /** The layers that the copy shares, oldest first. */
  readonly shared: readonly string[];
  /** The top layer from now on. */
  readonly fresh: string;
  /** False when the existing empty top layer is reused. */
  readonly isNew: boolean;
}

/**
 * Adds an empty top layer to a disk. It stays part of the disk even after a crash, which does no
 * harm, since an empty layer changes nothing.
 * @throws AppError `sandbox_start_conflict` when the disk has the maximum number of layers
 */
export async function addLayer(directory: string, base: string, uid: number): Promise<Split> {
  const layers = await readChain(directory);
  if (layers.length >= LAYERS_MAX) {
    const message =
      `the root disk has the maximum of ${LAYERS_MAX} layers: delete forks, then pause and ` +
      'resume the sandbox, which merges layers that no fork shares';
    throw new AppError('sandbox_start_conflict', message);
  }
  const fresh = newLayerName();
  await failpoint('make layer', () => prepareRootDisk(directory, fresh, base, uid));
  await failpoint('write chain', () => writeChain(directory, [...layers, fresh]));
  return { shared: layers, fresh, isNew: true };
}

/** Whether the top layer is empty, so that the disk can be split without another layer. */
export async function hasEmptyTop(directory: string): Promise<boolean> {
  const layers = (await readChain(directory)).map((layer) => join(directory, layer));
  const [top, ...others] = await writtenLayers(directory);
  // If other layers are not frozen, a machine may still be writing to one of them.
  if (top === undefined || others.length > 0 || top !== layers.at(-1)) return false;
  return layers.length > 1 && isEmptyLayer(top);
}

/** Splits a disk that nothing writes to now: as {@link addLayer}, but reuses an empty top layer. */
export async function splitDisk(directory: string, base: string, uid: number): Promise<Split> {
  if (!(await hasEmptyTop(directory))) return addLayer(directory, base, uid);
  const layers = await readChain(directory);
  return { shared: layers.slice(0, -1), fresh: layers.at(-1) ?? FIRST_LAYER, isNew: false };
}

/** Two neighbouring layers of a chain that can be merged. */
export interface Neighbours {
  /** All layers up to and including the upper one, oldest first. */
  readonly chain: readonly string[];
  readonly lower: string;
  readonly upper: string;
}

/**
 * Finds two neighbouring layers that can be merged: no other disk shares them, and neither is the
 * top.
 * @param bytesMax largest size of the upper layer, which the merge has to read
 */
export async function findMergeable(
  directory: string,
  bytesMax: number,
): Promise<Neighbours | undefined> {
  const layers = await readChain(directory);
  const files = await Promise.all(layers.map((layer) => stat(join(directory, layer))));
  for (const [index, upper] of layers.slice(0, -1).entries()) {
    const lower = layers[index - 1];
    const isOwn = files[index]?.nlink === 1 && files[index - 1]?.nlink === 1;
    if (lower === undefined || !isOwn || (files[index]?.size ?? 0) > bytesMax) continue;
    return { chain: layers.slice(0, index + 1), lower, upper };
  }
  return undefined;
}

/** Removes layer files that are not in the chain, which a crash can leave. */
export async function removeStrays(directory: string): Promise<void> {
  const layers = new Set(await readChain(directory));
  const strays = (await readdir(directory)).filter(
    (name) => name.endsWith('.qcow2') && !layers.has(name),
  );
  for (const name of strays) await rm(join(directory, name), { force: true });
}

/** Gives a frozen layer back to the disk's user for writing; no other disk may share it. */
export async function unfreezeLayer(directory: string, layer: string, uid: number): Promise<void> {
  const path = join(directory, layer);
  await chown(path, uid, uid); // First: what is root's alone could not be read after a crash.
  await chmod(path, 0o600);
}

/** Removes a layer whose contents were merged into the one below it. */
export async function dropLayer(directory: string, { lower, upper }: Neighbours): Promise<void> {
  await syncPath(join(directory, lower));
  await freezeLayer(join(directory, lower));
  const layers = await readChain(directory);
  await failpoint('write chain', () =>
    writeChain(
      directory,
      layers.filter((layer) => layer !== upper),
    ),
  );
  await failpoint('remove layer', () => rm(join(directory, upper), { force: true }));
}

/**
 * Makes a layer read-only for everybody but root. A crash on the way leaves a layer that its
 * machine can still read, and that is not frozen yet. The mode is set twice, because the layer's
 * user can change it for as long as the layer is theirs.
 */
async function freezeLayer(path: string): Promise<void> {
  await chmod(path, 0o444);
  await failpoint('freeze layer', () => chown(path, 0, 0));
  await chmod(path, 0o444);
}

/** Whether nothing writes to a layer any more; its contents are durable then. */
async function isFrozen(path: string): Promise<boolean> {
  const { uid, mode } = await stat(path);
  return uid === 0 && (mode & 0o222) === 0;
}

/**
 * Makes a disk, with its directory, that shares layers of another disk and adds an empty top. What
 * is left of it after a crash does not count.
 * @returns paths that the caller must make durable before the disk counts
 */
export async function copyDisk(
  from: string,
  shared: readonly string[],
  to: { readonly directory: string; readonly base: string; readonly uid: number },
): Promise<string[]> {
  await mkdir(to.directory, { recursive: true, mode: 0o711 });
  for (const layer of shared) {
    const path = join(from, layer);
    if (!(await isFrozen(path))) {
      await syncPath(path);
      await freezeLayer(path);
    }
    await failpoint('share layer', () => link(path, join(to.directory, layer)));
  }
  const fresh = newLayerName();
  const made = await failpoint('make layer', () =>
    addRootDisk(to.directory, fresh, to.base, to.uid),
  );
  const chain = join(to.directory, NAME);
  await failpoint('write chain', () =>
    writeFile(chain, JSON.stringify({ layers: [...shared, fresh] }), { mode: 0o600 }),
  );
  return [chain, ...made];
}

/** Paths of the layers that are not frozen: their contents may not be durable yet. */
export async function writtenLayers(directory: string): Promise<string[]> {
  const paths = (await readChain(directory)).map((layer) => join(directory, layer));
  const frozen = await Promise.all(paths.map(isFrozen));
  return paths.filter((_, index) => frozen[index] !== true);
}

/** Gives a disk that came from another host to its user on this one. Idempotent. */
export async function giveDisk(directory: string, uid: number): Promise<void> {
  for (const path of await writtenLayers(directory)) {
    await failpoint('give layer', () => chown(path, uid, uid));
  }
}

/** The uid that a disk's machine runs as. */
export async function ownerOfDisk(directory: string): Promise<number> {
  const last = (await readChain(directory)).at(-1) ?? FIRST_LAYER;
  return (await stat(join(directory, last))).uid;
}
