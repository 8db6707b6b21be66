import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { KiB } from '../../shared/units.ts';

/** Lines that are read at once are handled in one turn of the event loop. */
const READ_BYTES = 64 * KiB;
const LINE_FEED = 0x0a;

interface Opened {
  readonly file: FileHandle;
  readonly size: number;
}

async function openWithin(path: string, bytesMax: number): Promise<Opened> {
  // Without O_NONBLOCK, opening a pipe waits for its writer.
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const file = await open(path, flags);
  try {
    const found = await file.stat();
    if (!found.isFile()) throw new Error(`${path} is not a regular file`);
    if (found.size > bytesMax)
      throw new Error(`${path} has ${found.size} bytes, more than ${bytesMax}`);
    return { file, size: found.size };
  } catch (error) {
    await file.close();
    throw error;
  }
}

/**
 * Reads a file that others may have written.
 * @throws Error when it is longer, a link, or not a regular file: reading a pipe would never end
 */
export async function readFileWithin(path: string, bytesMax: number): Promise<Buffer> {
  const { file } = await openWithin(path, bytesMax);
  try {
    return await file.readFile();
  } finally {
    await file.close();
  }
}

/**
 * Reads the lines of such a file one by one, without their ends. A last one without its end is left
 * out.
 * @throws Error as {@link readFileWithin}
 */
export async function* readLinesWithin(path: string, bytesMax: number): AsyncGenerator<string> {
  const { file, size } = await openWithin(path, bytesMax);
  try {
    const buffer = Buffer.allocUnsafeSlow(READ_BYTES);
    let begun: Buffer[] = [];
    for (let at = 0; at < size;) {
      const { bytesRead } = await file.read(buffer, 0, Math.min(READ_BYTES, size - at), at);
      if (bytesRead === 0) return;
      at += bytesRead;
      let rest = buffer.subarray(0, bytesRead);
      for (let end = rest.indexOf(LINE_FEED); end !== -1; end = rest.indexOf(LINE_FEED)) {
        yield Buffer.concat([...begun, rest.subarray(0, end)]).toString('utf8');
        begun = [];
        rest = rest.subarray(end + 1);
      }
      begun.push(Buffer.from(rest));
    }
  } finally {
    await file.close();
  }
}
