import { stat } from 'node:fs/promises';
import { errnoOf } from '../../shared/errors.ts';

/** Whether a path leads to something. @throws Error when the file system does not tell */
export async function exists(path: string): Promise<boolean> {
  try {
    await stat(path);
    return true;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return false;
    throw error;
  }
}
