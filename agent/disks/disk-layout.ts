import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { join } from 'node:path';
import { ignoring } from '../../shared/errors.ts';
import {
  chmod,
  chown,
  closeFile,
  getAttribute,
  lstat,
  mkdir,
  openFile,
  readdir,
  rename,
  setAttribute,
  stat,
  syncFile,
} from './disk-calls.ts';

/** Containers can neither see nor set `trusted.*` (xattr(7)): only the agent uses the marker. */
const MARKER = 'trusted.berth.layout';
const DONE = 'contents-1';

/** The two directories of a mounted disk (decision 0013). */
export interface DiskLayout {
  /** The files that callers see, by commands, searches, share links and the object API. */
  readonly contents: string;
  /** Objects that are still being written; callers never see them. */
  readonly uploads: string;
}

export const layoutOf = (mount: string): DiskLayout => ({
  contents: join(mount, 'contents'),
  uploads: join(mount, 'uploads'),
});

/**
 * Gives a mounted disk its two directories. The root of a new file system, or of an old disk whose
 * callers saw the root itself, becomes `contents`, with its owner and mode.
 *
 * The marker on the root records the next step, so this can be interrupted at any point and
 * repeated: first everything moves into a directory whose unused name the marker holds, then the
 * root changes. A caller's entry cannot be mistaken for one of ours, since none is left in the root
 * by then.
 */
export async function prepareLayout(mount: string): Promise<DiskLayout> {
  const root = await openFile(mount, constants.O_RDONLY | constants.O_DIRECTORY);
  try {
    const mark = (text: string): Promise<void> => setAttribute(root, MARKER, Buffer.from(text));
    const marker = (await getAttribute(root, MARKER))?.toString() ?? '';
    if (marker === DONE) return layoutOf(mount);
    let [, step = '', name = ''] = /^(moving|moved) (\.[0-9a-f]{32})$/u.exec(marker) ?? [];
    if (step === '' && marker !== '') throw new Error(`unknown layout of a disk: ${marker}`);
    if (step === '') {
      name = await unusedName(mount);
      await mark(`moving ${name}`);
      step = 'moving';
    }
    if (step === 'moving') {
      await moveContents(mount, name);
      await mark(`moved ${name}`);
    }
    await finishRoot(mount, name);
    await syncFile(root);
    await mark(DONE);
    await syncFile(root);
    return layoutOf(mount);
  } finally {
    await closeFile(root);
  }
}

async function unusedName(mount: string): Promise<string> {
  const name = `.${randomBytes(16).toString('hex')}`;
  return (await exists(join(mount, name))) ? unusedName(mount) : name;
}

async function moveContents(mount: string, name: string): Promise<void> {
  const target = join(mount, name);
  await mkdir(target, { mode: 0o700 }).catch(ignoring('EEXIST'));
  // Entries that are renamed while the directory is read may be missed: read it until none is left.
  for (let moved = -1; moved !== 0;) {
    moved = 0;
    // Names need not be UTF-8.
    for (const found of await readdir(mount, { encoding: 'buffer' })) {
      if (found.equals(Buffer.from(name))) continue;
      await rename(
        Buffer.concat([Buffer.from(`${mount}/`), found]),
        Buffer.concat([Buffer.from(`${target}/`), found]),
      );
      moved += 1;
    }
  }
  const { uid, gid, mode } = await stat(mount);
  await chown(target, uid, gid);
  await chmod(target, mode & 0o7777);
}

async function finishRoot(mount: string, name: string): Promise<void> {
  const { contents, uploads } = layoutOf(mount);
  await rename(join(mount, name), contents).catch(ignoring('ENOENT'));
  await chown(mount, 0, 0);
  await chmod(mount, 0o700);
  await mkdir(uploads, { mode: 0o700 }).catch(ignoring('EEXIST'));
}

const exists = async (path: string): Promise<boolean> =>
  (await lstat(path).catch(ignoring('ENOENT'))) !== undefined;
