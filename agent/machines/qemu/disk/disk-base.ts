import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import Type from 'typebox';
import { errnoOf } from '../../../../shared/errors.ts';
import { compile } from '../../../../shared/validate.ts';
import type { SharedBases } from '../../driver.ts';
import { exists } from '../../../system/exists.ts';
import { failpoint } from '../../../system/failpoint.ts';
import { syncPath, writeDurably } from '../../../system/write-durably.ts';
import { readRecord } from '../../../system/read-record.ts';
import { baseLinkOf, baseNamePattern, type DiskBases } from './disk-bases.ts';

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
export const readBase = (directory: string): Promise<DiskBase | undefined> =>
  readRecord(join(directory, NAME), parse);

/**
 * Like {@link readBase}, but takes the machine's link to the copy if the host's image is gone.
 * @throws Error without both
 */
export async function findBase(directory: string, host: BaseHost): Promise<DiskBase> {
  const base = (await readBase(directory)) ?? { path: host.rootDisk };
  if (await exists(base.path)) return base;
  const link = linkOf(directory, base);
  if (link !== undefined && (await exists(link))) return { ...base, path: link };
  throw new Error(`the base image of the root disk, ${base.path}, is gone`);
}

/** Whether a disk stands on the copy that hosts share, so that it needs no image of this host. */
export async function standsOnCopy(directory: string, host: BaseHost): Promise<boolean> {
  const base = await readBase(directory);
  if (base?.copy === undefined || host.bases === undefined) return false;
  // Machines from before each had a link stand on the copy itself.
  const { path } = base;
  const isCopy = path === linkOf(directory, base) || path === host.bases.pathOf(base.copy);
  return isCopy && (await exists(path));
}

const linkOf = (directory: string, { copy }: DiskBase): string | undefined =>
  copy === undefined ? undefined : baseLinkOf(directory, copy);

/**
 * Records the image that a disk is about to be made on. Where disks move, the machine gets its link
 * to the image's copy first: no record names a copy that could be removed.
 */
export async function giveBase(
  directory: string,
  path: string,
  { bases }: BaseHost,
): Promise<void> {
  const copy = await bases?.hold(directory, path);
  await recordBase(directory, { path, ...(copy === undefined ? {} : { copy }) });
}

/**
 * Gives a copy of a machine the machine's base. Nothing may depend on the copy's directory yet.
 * @returns the copy's base, and the path to make durable besides the directory
 */
export async function copyBase(
  from: { readonly directory: string; readonly base: DiskBase },
  directory: string,
  { bases }: BaseHost,
): Promise<{ readonly base: DiskBase; readonly record: string }> {
  const { copy } = from.base;
  const [source, link] = [linkOf(from.directory, from.base), linkOf(directory, from.base)];
  const isLinked = copy !== undefined && (await bases?.link(directory, copy, source)) === true;
  if (copy !== undefined && !isLinked) await bases?.hold(directory, from.base.path);
  // Not the source's link: that goes away with the source.
  const isLink = link !== undefined && from.base.path === source;
  const base = isLink ? { ...from.base, path: link } : from.base;
  const record = join(directory, NAME);
  await writeFile(record, JSON.stringify(base), { mode: 0o600 });
  return { base, record };
}

/** Call it before the first layer is made. */
const recordBase = (directory: string, base: DiskBase): Promise<void> =>
  failpoint('record base', () => writeDurably(directory, NAME, JSON.stringify(base)));

/**
 * Links the base to a machine of a former version that had no link, wherever it lies. Idempotent;
 * harmless while another host has the machine, since its files stay as they are.
 * @throws Error when the storage cannot be read; ENOENT when the machine has moved
 */
export async function keepBase(directory: string, bases: DiskBases): Promise<void> {
  const base = await readBase(directory).catch((error: unknown) => {
    if (errnoOf(error) !== undefined) throw error;
    return undefined; // Its machine cannot be started, and says so then.
  });
  const link = base && linkOf(directory, base);
  if (base?.copy === undefined || link === undefined || (await exists(link))) return;
  if (await bases.link(directory, base.copy)) await syncPath(directory);
  // Without a copy there is nothing to keep.
  else if (await exists(bases.pathOf(base.copy)))
    throw new Error(`the storage allows no more links to ${base.copy}`);
}

/**
 * For a disk that came from another host, whose paths mean nothing here: the same image on this
 * one, if it is the host's default image, else the machine's link to the copy.
 */
export async function moveBase(directory: string, host: BaseHost): Promise<void> {
  const base = await readBase(directory);
  const { bases, rootDisk } = host;
  if (bases === undefined || base?.copy === undefined)
    throw new Error("the sandbox's disk names no base image that hosts share");
  const isOwn = (await bases.nameOf(rootDisk)) === base.copy;
  if (isOwn) await bases.hold(directory, rootDisk);
  const path = isOwn ? rootDisk : baseLinkOf(directory, base.copy);
  if (base.path !== path) await recordBase(directory, { ...base, path });
}

/** The copies as the sandboxes of a host need them. */
export const sharedBases = (bases: DiskBases): SharedBases => ({
  keep: (directory) => keepBase(directory, bases),
  unused: () => bases.unused(),
  remove: (name) => bases.remove(name),
});
