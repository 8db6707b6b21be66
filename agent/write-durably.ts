import { randomBytes } from 'node:crypto';
import { open, rename } from 'node:fs/promises';
import { join } from 'node:path';

/** What was written to the file, or which names the directory has, is on the storage. */
export async function syncPath(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

/** Replaces a file so that after a crash it holds either the old text or the new one. */
export async function writeDurably(directory: string, name: string, text: string): Promise<void> {
  const temporary = join(directory, `.${name}-${randomBytes(6).toString('hex')}`);
  const file = await open(temporary, 'wx', 0o600);
  try {
    await file.writeFile(text);
    await file.sync();
  } finally {
    await file.close();
  }
  await rename(temporary, join(directory, name));
  await syncPath(directory);
}
