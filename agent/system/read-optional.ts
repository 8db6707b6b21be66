import { readFile } from 'node:fs/promises';
import { ignoring } from '../../shared/errors.ts';

/** The text of a file; undefined without one. */
export const readOptional = (path: string): Promise<string | undefined> =>
  readFile(path, 'utf8').catch(ignoring('ENOENT'));
