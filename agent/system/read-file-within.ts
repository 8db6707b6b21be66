import { constants } from 'node:fs';
import { open } from 'node:fs/promises';

/**
 * Reads a file that others may have written.
 * @throws Error when it is longer, a link, or no plain file: reading a pipe would never end
 */
export async function readFileWithin(path: string, bytesMax: number): Promise<Buffer> {
  // Without O_NONBLOCK, opening a pipe waits for its writer.
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const file = await open(path, flags);
  try {
    const found = await file.stat();
    if (!found.isFile()) throw new Error(`${path} is no plain file`);
    if (found.size > bytesMax)
      throw new Error(`${path} has ${found.size} bytes, more than ${bytesMax}`);
    return await file.readFile();
  } finally {
    await file.close();
  }
}
