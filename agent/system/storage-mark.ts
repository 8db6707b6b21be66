import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import Type from 'typebox';
import { sandboxIdPattern } from '../../shared/ids.ts';
import { parseJson } from '../../shared/json.ts';
import { compile } from '../../shared/validate.ts';
import { readOptional } from './read-optional.ts';
import { writeOnce } from './write-once.ts';

/*
 * The file that names a storage, so that an empty mount point on which nothing is mounted is not
 * taken for it.
 */

const Mark = Type.Object({
  version: Type.Literal(1),
  /** A UUID. */
  id: Type.String({ pattern: sandboxIdPattern }),
});
const parseMark = compile(Mark);

export const markOf = (directory: string): string => join(directory, 'storage.json');

/**
 * @returns the id of the storage; undefined when the directory is none, or is missing
 * @throws Error when the file is no mark
 */
export async function readMark(directory: string): Promise<string | undefined> {
  const path = markOf(directory);
  const text = await readOptional(path);
  return text === undefined ? undefined : parseMark(parseJson(text), path).id;
}

/**
 * Makes a directory a storage, unless it is one. Of several hosts that try at once, one names it.
 */
export async function markStorage(directory: string): Promise<string> {
  const path = markOf(directory);
  const text = await writeOnce(path, JSON.stringify({ version: 1, id: randomUUID() }));
  return parseMark(parseJson(text), path).id;
}

/** @throws Error unless the storage with this id is there now */
export async function checkMark(directory: string, id: string): Promise<void> {
  const found = await readMark(directory);
  if (found === id) return;
  throw new Error(
    found === undefined
      ? `there is no ${markOf(directory)}: the storage is not mounted`
      : `${markOf(directory)} is of another storage`,
  );
}
