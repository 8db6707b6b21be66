import { readlinkSync } from 'node:fs';
import { errnoOf } from '../../shared/errors.ts';
import { closeFile, openBeneath, statFile } from './disk-calls.ts';
import { refusedPath } from './refused-path.ts';

/** open(2)'s flag, which `fs.constants` lacks. The value is the same on x86_64 and arm64. */
const O_PATH = 0o10_000_000;

/** An exclusive hold that a command asks for. */
export interface Checkout {
  /** From the disk's root; empty: the root. */
  readonly path: string;
  /** How long to wait for other holders, in milliseconds; 0: not at all. */
  readonly waitMs: number;
}

/** A file or directory that is checked out, or is to be. */
export interface CheckoutTarget extends Checkout {
  readonly inodeId: number;
  /**
   * Absolute paths within the disk that the checkout covers, one character for each byte: the path
   * that was asked for, the one it resolved to, and where the file or directory is by now.
   */
  paths(): string[];
}

/** A target that is held open, so that renames can be followed. */
export type OpenCheckoutTarget = CheckoutTarget & AsyncDisposable;

/**
 * Opens what a command asks to check out, without access to its contents (O_PATH).
 * @param contents the canonical path at which callers' contents of the disk are mounted
 * @throws AppError `bad_request` when the path does not exist or leads out of the disk
 */
export async function openCheckoutTarget(
  contents: string,
  checkout: Checkout,
): Promise<OpenCheckoutTarget> {
  const { path } = checkout;
  const fd = await openBeneath(contents, path, O_PATH).catch((error: unknown) => {
    throw refusedPath(error, path);
  });
  try {
    const asked = path === '' ? [] : [`/${Buffer.from(path).toString('latin1')}`];
    const inodeId = Number((await statFile(fd, { bigint: true })).ino);
    const fixed = [...asked, ...pathsOf(contents, fd)];
    return {
      ...checkout,
      inodeId,
      paths: () => [...fixed, ...pathsOf(contents, fd)],
      [Symbol.asyncDispose]: () => closeFile(fd),
    };
  } catch (error) {
    await closeFile(fd);
    throw error;
  }
}

/**
 * Where the open file or directory is now, which the kernel knows without reading the disk. Nowhere
 * when it was deleted, or when its path is longer than the kernel can say.
 */
function pathsOf(contents: string, fd: number): string[] {
  const root = Buffer.from(contents).toString('latin1');
  try {
    const path = readlinkSync(`/proc/self/fd/${fd}`, 'buffer').toString('latin1');
    if (path === root) return [''];
    return path.startsWith(`${root}/`) ? [path.slice(root.length)] : [];
  } catch (error) {
    if (errnoOf(error) === 'ENAMETOOLONG') return [];
    throw error;
  }
}
