import { chmod, chown, link, mkdir, readdir, readFile, rm, stat } from 'node:fs/promises';
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import Type from 'typebox';
import { AppError, errnoOf } from '../../../shared/errors.ts';
import { compile } from '../../../shared/validate.ts';
import { failpoint } from '../../system/failpoint.ts';
import { syncPath, writeDurably } from '../../system/write-durably.ts';
import { listNames } from '../qemu/machine-directory.ts';
import { isEmptyLayer, prepareRootDisk } from './root-disk.ts';
import { parseJson } from '../../../shared/json.ts';

/*
 * The layers of a root disk, each a file in the sandbox's directory of disks. All but the last are
 * frozen: they are root's, nobody writes to them, and sandboxes that were forked from each other
 * share them as links to one file, which goes with the last of them.
 */

const FIRST_LAYER = 'root.qcow2';
const NAME = 'chain.json';
const layerPattern = '^[a-z0-9-]{1,40}\\.qcow2$';
/** QEMU opens all of them for each machine. */
const LAYERS_MAX = 96;

const Chain = Type.Object({
  layers: Type.Array(Type.String({ pattern: layerPattern }), { minItems: 1, maxItems: 128 }),
});
const parse = compile(Chain);

const newLayerName = (): string => `layer-${randomBytes(8).toString('hex')}.qcow2`;

/** From the oldest to the one that is written to. */
export async function readChain(directory: string): Promise<string[]> {
  try {
    return parse(parseJson(await readFile(join(directory, NAME), 'utf8')), NAME).layers;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return [FIRST_LAYER];
    throw error;
  }
}

const writeChain = (directory: string, layers: readonly string[]): Promise<void> =>
  writeDurably(directory, NAME, JSON.stringify({ layers }));

/** Whether the disk was ever made. */
export async function hasDisk(directory: string): Promise<boolean> {
  const names = await listNames(directory);
  return names.includes(NAME) || names.includes(FIRST_LAYER);
}

/** Makes the first layer, unless the disk is there. */
export async function prepareDisk(directory: string, base: string, uid: number): Promise<void> {
  const layers = await readChain(directory);
  if (layers.length > 1) return;
  await prepareRootDisk(directory, FIRST_LAYER, base, uid);
}

/** A disk about to be split: what is below `fresh` is what the copy gets. */
export interface Split {
  /** What the copy shares, from the oldest on. */
  readonly shared: readonly string[];
  /** The layer that is written to from now on. */
  readonly fresh: string;
  /** Otherwise it was so before: nothing has been written to it. */
  readonly isNew: boolean;
}

/**
 * Puts an empty layer on a disk. From here on it is part of the disk, also after a crash: as long as
 * nobody writes to it, it changes nothing.
 * @throws AppError `sandbox_start_conflict` when it has as many layers as it may
 */
export async function addLayer(directory: string, base: string, uid: number): Promise<Split> {
  const layers = await readChain(directory);
  if (layers.length >= LAYERS_MAX) {
    const message =
      `the root disk has ${LAYERS_MAX} layers, as many as it can: delete forks, then pause and ` +
      'resume the sandbox, which merges layers that no fork shares';
    throw new AppError('sandbox_start_conflict', message);
  }
  const fresh = newLayerName();
  await failpoint('make layer', () => prepareRootDisk(directory, fresh, base, uid));
  await failpoint('write chain', () => writeChain(directory, [...layers, fresh]));
  return { shared: layers, fresh, isNew: true };
}

/** Whether a disk needs no other layer to be split: nothing was written since the last time. */
export async function hasEmptyTop(directory: string): Promise<boolean> {
  const layers = (await readChain(directory)).map((layer) => join(directory, layer));
  const [top, ...others] = await writtenLayers(directory);
  // With others that may have been written to, a machine may be writing to one of them.
  if (top === undefined || others.length > 0 || top !== layers.at(-1)) return false;
  return layers.length > 1 && isEmptyLayer(top);
}

/** For a disk that nobody writes to just now: as `addLayer`, unless its top is empty as it is. */
export async function splitDisk(directory: string, base: string, uid: number): Promise<Split> {
  if (!(await hasEmptyTop(directory))) return addLayer(directory, base, uid);
  const layers = await readChain(directory);
  return { shared: layers.slice(0, -1), fresh: layers.at(-1) ?? FIRST_LAYER, isNew: false };
}

/** Two neighbours of a chain that become one. */
export interface Neighbours {
  /** All layers up to the upper one, from the oldest on. */
  readonly chain: readonly string[];
  readonly lower: string;
  readonly upper: string;
}

/**
 * Two layers that no other disk shares, and to neither of which anybody writes.
 * @param bytesMax of the upper one, which is to be read
 */
export async function ownNeighbours(
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

/** Removes layers of no chain: a crash came between the chain and the file. */
export async function removeStrays(directory: string): Promise<void> {
  const layers = new Set(await readChain(directory));
  const strays = (await readdir(directory)).filter(
    (name) => name.endsWith('.qcow2') && !layers.has(name),
  );
  for (const name of strays) await rm(join(directory, name), { force: true });
}

/** Lets the user of a disk write to a layer that was frozen; it must be nobody else's. */
export async function unfreezeLayer(directory: string, layer: string, uid: number): Promise<void> {
  const path = join(directory, layer);
  await chown(path, uid, uid);
  await chmod(path, 0o600);
}

/** Takes a layer out whose contents are in the one below it. */
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

/** Whoever has it may read it, and nobody change it any more. */
async function freezeLayer(path: string): Promise<void> {
  await chown(path, 0, 0);
  await chmod(path, 0o444);
}

/** Makes a disk that begins as the layers of another one; its directory is made, too. */
export async function copyDisk(
  from: string,
  shared: readonly string[],
  to: { readonly directory: string; readonly base: string; readonly uid: number },
): Promise<void> {
  await mkdir(to.directory, { recursive: true, mode: 0o711 });
  for (const layer of shared) {
    const path = join(from, layer);
    await syncPath(path);
    await freezeLayer(path);
    await failpoint('share layer', () => link(path, join(to.directory, layer)));
  }
  const fresh = newLayerName();
  await failpoint('make layer', () => prepareRootDisk(to.directory, fresh, to.base, to.uid));
  await failpoint('write chain', () => writeChain(to.directory, [...shared, fresh]));
}

/** The files of a disk that may have been written to. */
export async function writtenLayers(directory: string): Promise<string[]> {
  const paths = (await readChain(directory)).map((layer) => join(directory, layer));
  const owners = await Promise.all(paths.map(async (path) => (await stat(path)).uid));
  return paths.filter((_, index) => owners[index] !== 0);
}

/** The user that writes to a disk. */
export async function ownerOfDisk(directory: string): Promise<number> {
  const last = (await readChain(directory)).at(-1) ?? FIRST_LAYER;
  return (await stat(join(directory, last))).uid;
}
