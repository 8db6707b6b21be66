import { chmod, chown, link, mkdir, readFile, stat } from 'node:fs/promises';
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import Type from 'typebox';
import { AppError, errnoOf } from '../../../shared/errors.ts';
import { compile } from '../../../shared/validate.ts';
import { step } from '../../step.ts';
import { syncPath, writeDurably } from '../../write-durably.ts';
import { isEmptyLayer, prepareRootDisk } from './root-disk.ts';

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
    return parse(JSON.parse(await readFile(join(directory, NAME), 'utf8')), NAME).layers;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return [FIRST_LAYER];
    throw error;
  }
}

const writeChain = (directory: string, layers: readonly string[]): Promise<void> =>
  writeDurably(directory, NAME, JSON.stringify({ layers }));

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
}

/**
 * Puts an empty layer on a disk. From here on it is part of the disk, also after a crash: as long as
 * nobody writes to it, it changes nothing.
 * @throws AppError `bad_request` when it has as many layers as it may
 */
export async function addLayer(directory: string, base: string, uid: number): Promise<Split> {
  const layers = await readChain(directory);
  if (layers.length >= LAYERS_MAX) {
    const message = `the root disk was forked ${LAYERS_MAX} times, as often as it can be`;
    throw new AppError('bad_request', message);
  }
  const fresh = newLayerName();
  await step('make layer', () => prepareRootDisk(directory, fresh, base, uid));
  await step('write chain', () => writeChain(directory, [...layers, fresh]));
  return { shared: layers, fresh };
}

/** For a disk that nobody writes to: as `addLayer`, but for a last layer that is empty as it is. */
export async function splitDisk(directory: string, base: string, uid: number): Promise<Split> {
  const layers = await readChain(directory);
  const last = layers.at(-1);
  if (layers.length > 1 && last !== undefined && (await isEmptyLayer(join(directory, last)))) {
    return { shared: layers.slice(0, -1), fresh: last };
  }
  return addLayer(directory, base, uid);
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
    // Frozen: whoever has it may read it, and nobody change it any more.
    await chown(path, 0, 0);
    await chmod(path, 0o444);
    await step('share layer', () => link(path, join(to.directory, layer)));
  }
  const fresh = newLayerName();
  await step('make layer', () => prepareRootDisk(to.directory, fresh, to.base, to.uid));
  await step('write chain', () => writeChain(to.directory, [...shared, fresh]));
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
