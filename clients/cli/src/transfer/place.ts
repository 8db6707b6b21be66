import { NotFoundError } from '@berth/sdk';
import { NotFoundFailure, UsageFailure } from '../failure.ts';
import { visible } from '../text.ts';

/**
 * A source or target of `cp` and `sync`: a path here, stdin or stdout, or a path on a disk or in a
 * sandbox.
 */
export type Place =
  | { readonly kind: 'local'; readonly path: string }
  | { readonly kind: 'standard' }
  | { readonly kind: 'remote'; readonly name: string; readonly path: string };

/**
 * `name:path` is remote, everything else local; `./a:b` is a local file, because a colon after a
 * slash names nothing remote, as with scp.
 */
export function parsePlace(text: string): Place {
  if (text === '-') return { kind: 'standard' };
  const [, name, path = ''] = /^([^:/]+):(.*)$/su.exec(text) ?? [];
  return name === undefined ? { kind: 'local', path: text } : { kind: 'remote', name, path };
}

/** The remote place that an argument must be. @throws UsageFailure when it is another one */
export function parseRemote(text: string): Place & { readonly kind: 'remote' } {
  const place = parsePlace(text);
  if (place.kind === 'remote') return place;
  throw new UsageFailure(`${text} is not a path on a disk`, 'write it as disk:path');
}

/** The two sides of a transfer, one of them here. */
export type Transfer =
  | {
      readonly direction: 'up';
      readonly from: Place & { readonly kind: 'local' | 'standard' };
      readonly to: Place & { readonly kind: 'remote' };
    }
  | {
      readonly direction: 'down';
      readonly from: Place & { readonly kind: 'remote' };
      readonly to: Place & { readonly kind: 'local' | 'standard' };
    };

/** @throws UsageFailure unless one side is here and the other one is not */
export function parseTransfer(source: string, target: string, what: string): Transfer {
  const from = parsePlace(source);
  const to = parsePlace(target);
  if (from.kind !== 'remote' && to.kind === 'remote') return { direction: 'up', from, to };
  if (from.kind === 'remote' && to.kind !== 'remote') return { direction: 'down', from, to };
  const next = `write one of them as ${what}:path, and a local path with a colon as ./name`;
  throw new UsageFailure(`one side must be here and the other one a ${what}`, next);
}

/** The last segment of a path, without slashes. */
export const baseName = (path: string): string => path.replace(/\/+$/u, '').split('/').at(-1) ?? '';

/**
 * Whether a remote path can only be that of a directory, such as `dir/` or `dir/.`; the root is
 * one.
 */
export const isNamedAsDirectory = (path: string): boolean => /(?:^|\/)\.?$/u.test(path);

/** A path below a directory; an empty directory is the root of a disk. */
export const joinPath = (directory: string, rest: string): string => {
  const above = directory.replace(/\/+$/u, '');
  if (rest === '') return above;
  return directory === '' ? rest : `${above}/${rest}`;
};

/** Nothing lies where the user says. */
export const nothingAt = (path: string): NotFoundFailure =>
  new NotFoundFailure(`there is nothing at ${visible(path)}`, 'look at the name again');

/**
 * Resolves with the answer to a call for a remote file. @throws NotFoundFailure when the file is
 * not there
 */
export async function orNothingAt<T>(
  { name, path }: Place & { readonly kind: 'remote' },
  found: Promise<T>,
): Promise<T> {
  try {
    return await found;
  } catch (error) {
    if (error instanceof NotFoundError) throw nothingAt(`${name}:${path}`);
    throw error;
  }
}
