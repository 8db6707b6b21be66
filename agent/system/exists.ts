import { stat } from 'node:fs/promises';
import { ignoring } from '../../shared/errors.ts';

/** Whether a path leads to something. @throws Error when the file system cannot be read */
export const exists = async (path: string): Promise<boolean> =>
  (await stat(path).catch(ignoring('ENOENT'))) !== undefined;
