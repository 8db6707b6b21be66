import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import Type from 'typebox';
import { errnoOf } from '../../../shared/errors.ts';
import { parseJson } from '../../../shared/json.ts';
import { compile } from '../../../shared/validate.ts';
import { writeDurably } from '../../system/write-durably.ts';
import { baseNamePattern, type DiskBases } from './disk-bases.ts';

/*
 * The image below the layers of a root disk. It is recorded beside the disk, because the layers are
 * worthless on any other image, also after the host's default image has been built anew.
 */

const NAME = 'base.json';
const DiskBase = Type.Object({
  /** On this host. */
  path: Type.String({ pattern: '^/' }),
  /** Describes the image's copy on the storage that hosts share. */
  copy: Type.Optional(Type.String({ pattern: baseNamePattern })),
});
export type DiskBase = Type.Static<typeof DiskBase>;
const parse = compile(DiskBase);

/** The parts with which an image is found. */
export interface BaseHost {
  /** The host's default image. */
  readonly rootDisk: string;
  /** Undefined where disks stay on their host. */
  readonly bases?: DiskBases | undefined;
}

/**
 * @param directory the sandbox's
 * @returns undefined for disks made before images were recorded: they stand on the default image
 */
export async function readBase(directory: string): Promise<DiskBase | undefined> {
  try {
    return parse(parseJson(await readFile(join(directory, NAME), 'utf8')), NAME);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

/**
 * Like {@link readBase}, but takes the copy if the host's image is gone.
 * @throws Error without both
 */
export async function findBase(directory: string, host: BaseHost): Promise<DiskBase> {
  const base = (await readBase(directory)) ?? { path: host.rootDisk };
  if (existsSync(base.path)) return base;
  const copy = base.copy === undefined ? undefined : host.bases?.pathOf(base.copy);
  if (copy !== undefined && existsSync(copy)) return { ...base, path: copy };
  throw new Error(`the image that its disk began with, ${base.path}, is gone`);
}

/** Whether a disk stands on the copy that hosts share, so that it needs no image of this host. */
export async function standsOnCopy(directory: string, host: BaseHost): Promise<boolean> {
  const { path, copy } = (await readBase(directory)) ?? {};
  if (copy === undefined || host.bases === undefined) return false;
  return path === host.bases.pathOf(copy) && existsSync(path);
}

/**
 * Like {@link recordBase}, in a directory that nothing depends on yet.
 * @returns path to make durable
 */
export async function addBase(directory: string, base: DiskBase): Promise<string> {
  const file = join(directory, NAME);
  await writeFile(file, JSON.stringify(base), { mode: 0o600 });
  return file;
}

/** Call it before the first layer is made. */
export const recordBase = (directory: string, base: DiskBase): Promise<void> =>
  writeDurably(directory, NAME, JSON.stringify(base));

/**
 * For a disk that came from another host, whose paths mean nothing here: the same image on this one,
 * if it is the host's default image, else the copy.
 */
export async function moveBase(directory: string, host: BaseHost): Promise<void> {
  const base = await readBase(directory);
  const { bases, rootDisk } = host;
  if (bases === undefined || base?.copy === undefined)
    throw new Error('its disk names no image that other hosts have');
  const isOwn = (await bases.share(rootDisk)) === base.copy;
  const path = isOwn ? rootDisk : bases.pathOf(base.copy);
  if (base.path !== path) await recordBase(directory, { ...base, path });
}
