import { existsSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import Type from 'typebox';
import { errnoOf } from '../../../shared/errors.ts';
import { parseJson } from '../../../shared/json.ts';
import { compile } from '../../../shared/validate.ts';
import { writeDurably } from '../../system/write-durably.ts';

/*
 * The image below the layers of a root disk. It is recorded beside the disk, because the layers are
 * worthless on any other image, also after the host's default image has been built anew.
 */

const NAME = 'base.json';
const parse = compile(Type.Object({ path: Type.String({ pattern: '^/' }) }));

/**
 * @param directory the sandbox's
 * @returns undefined for disks made before images were recorded: they stand on the default image
 */
export async function readBase(directory: string): Promise<string | undefined> {
  try {
    return parse(parseJson(await readFile(join(directory, NAME), 'utf8')), NAME).path;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

/** As {@link readBase}. @throws Error when the image is gone */
export async function findBase(directory: string, defaultImage: string): Promise<string> {
  const base = (await readBase(directory)) ?? defaultImage;
  if (!existsSync(base)) throw new Error(`the image that its disk began with, ${base}, is gone`);
  return base;
}

/** As {@link recordBase}, in a directory of which nothing counts yet. @returns path to make durable */
export async function addBase(directory: string, path: string): Promise<string> {
  const file = join(directory, NAME);
  await writeFile(file, JSON.stringify({ path }), { mode: 0o600 });
  return file;
}

/** Call it before the first layer is made; the directory is made if it is missing. */
export async function recordBase(directory: string, path: string): Promise<void> {
  await mkdir(directory, { recursive: true, mode: 0o700 });
  await writeDurably(directory, NAME, JSON.stringify({ path }));
}
