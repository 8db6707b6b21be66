import { execFile } from 'node:child_process';
import { chmod, cp, mkdir, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { paths } from '../../scripts/local-paths.ts';

/**
 * The version before this one; docs/decisions/0083 says which work side by side. It runs with this
 * one's npm packages, so it is the oldest that needs no others.
 */
const COMMIT = '87ea19e70928085a7fb045b72037b7a99d8ef778';
const run = promisify(execFile);

/**
 * Makes a checkout of the version before this one in a directory, with this one's npm packages.
 * @returns where it is
 * @throws Error when the history of this checkout lacks it
 */
export async function checkOutFormer(directory: string): Promise<string> {
  const checkout = join(directory, 'former');
  await mkdir(join(checkout, '.local'), { recursive: true });
  await chmod(directory, 0o711); // Users of machines get to what they are run with through it.
  const archive = `${directory}/former.tar`;
  await run('git', ['-C', paths.root, 'archive', '-o', archive, COMMIT]).catch((cause: unknown) => {
    const message = `${COMMIT} is not in the history: git fetch --unshallow`;
    throw new Error(message, { cause });
  });
  await run('tar', ['-xf', archive, '-C', checkout]);
  await symlink(join(paths.root, 'node_modules'), join(checkout, 'node_modules'));
  for (const name of ['config.env', 'console']) {
    await cp(join(paths.root, '.local', name), join(checkout, '.local', name), { recursive: true });
  }
  await run('make', ['-s', '-C', join(checkout, 'agent/native')]);
  return checkout;
}
