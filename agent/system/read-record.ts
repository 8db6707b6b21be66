import { basename } from 'node:path';
import { parseJson } from '../../shared/json.ts';
import { readOptional } from './read-optional.ts';

/**
 * Reads a file of JSON that this host wrote about itself. Errors name the file alone: they may
 * reach callers, who are not to learn the host's paths.
 * @param check made of the schema by `compile`
 * @returns undefined without the file
 * @throws Error when the file is damaged
 */
export async function readRecord<T>(
  path: string,
  check: (input: unknown, where: string) => T,
): Promise<T | undefined> {
  const text = await readOptional(path);
  return text === undefined ? undefined : check(parseJson(text), basename(path));
}
