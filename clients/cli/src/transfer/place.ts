import { UsageFailure } from '../failure.ts';

/** What `cp` and `sync` are told: a path here, stdin or stdout, or a path on a disk or in a sandbox. */
type Place =
  | { readonly kind: 'local'; readonly path: string }
  | { readonly kind: 'standard' }
  | { readonly kind: 'remote'; readonly name: string; readonly path: string };

/**
 * `name:path` is remote, everything else local; `./a:b` is a local file, because a colon behind a slash names
 * nothing remote, as with scp.
 */
function parsePlace(text: string): Place {
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
