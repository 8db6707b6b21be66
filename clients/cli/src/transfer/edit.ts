import { spawn } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Disk, NotFoundError, PreconditionError } from '@berth/sdk';
import { Failure, UnsavedFailure } from '../failure.ts';
import { requireTerminal } from '../terminal.ts';
import { baseName } from './place.ts';

interface Original {
  readonly bytes: Uint8Array;
  /** Undefined: there is no such file yet. */
  readonly etag: string | undefined;
}

async function fetchOriginal({ files }: Disk, path: string): Promise<Original> {
  try {
    const file = await files.read(path);
    return { bytes: await file.bytes(), etag: file.etag };
  } catch (error) {
    if (error instanceof NotFoundError) return { bytes: new Uint8Array(), etag: undefined };
    throw error;
  }
}

/** @throws Failure when the editor cannot be run, or failed */
async function runEditor(file: string): Promise<void> {
  const editor = process.env['VISUAL'] || process.env['EDITOR'] || 'vi';
  // The variables hold command lines, such as `code --wait`.
  const child = spawn('/bin/sh', ['-c', `${editor} "$1"`, 'editor', file], { stdio: 'inherit' });
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', resolve);
  });
  if (code !== 0) throw new Failure(`${editor} failed`, 'set EDITOR to another one');
}

/** @returns whether there was something to save @throws Failure when somebody else was faster */
async function save(disk: Disk, path: string, original: Original, file: string): Promise<boolean> {
  const edited = await readFile(file);
  if (Buffer.compare(edited, original.bytes) === 0) return false;
  const condition = original.etag === undefined ? { ifAbsent: true } : { ifMatch: original.etag };
  try {
    await disk.files.write(path, edited, condition);
  } catch (cause) {
    if (!(cause instanceof PreconditionError)) throw cause;
    throw new Failure('somebody else has changed the file meanwhile');
  }
  return true;
}

/**
 * Has the user edit a file, and saves it unless somebody else has changed it meanwhile.
 * @returns whether it was changed
 * @throws UnsavedFailure when the editor or saving failed: the edited text is kept then
 */
export async function edit(disk: Disk, path: string): Promise<boolean> {
  requireTerminal('berth disk cp puts a file into place without one');
  const original = await fetchOriginal(disk, path);
  const directory = await mkdtemp(join(tmpdir(), 'berth-edit-'));
  const file = join(directory, baseName(path) || 'file');
  await writeFile(file, original.bytes, { mode: 0o600 });
  let isChanged: boolean;
  try {
    await runEditor(file);
    isChanged = await save(disk, path, original, file);
  } catch (error) {
    throw new UnsavedFailure(file, error);
  }
  await rm(directory, { recursive: true });
  return isChanged;
}
