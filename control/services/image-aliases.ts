import type { ConfigReader } from '../../shared/config.ts';

/** Images by normalised reference. */
export type ImageAliases = ReadonlyMap<string, string>;

/** The only image until there are image builds: the one that commands on disks run in, too. */
const IMAGES = ['default'] as const;

const FALLBACK = ['ubuntu:26.04', 'ubuntu', 'debian:12', 'debian', 'default']
  .map((reference) => `${reference}=default`)
  .join(',');

/**
 * One spelling for all that mean the same: `library/` with the registry before it is where official
 * images lie, which are mostly named without it; without a tag the tag is `latest`.
 */
function normalise(reference: string): string {
  const short = reference.replace(/^([^/]*[.:][^/]*\/)?library\//u, '');
  return /[:@][^/]*$/u.test(short) ? short : `${short}:latest`;
}

/** The setting IMAGE_ALIASES. */
export const readImageAliases = (reader: ConfigReader): ImageAliases =>
  new Map(
    reader
      .pairs('IMAGE_ALIASES', { fallback: FALLBACK, values: IMAGES })
      .map(([reference, image]) => [normalise(reference), image]),
  );

/** The image that a caller's reference means here, if any. */
export const findImage = (aliases: ImageAliases, reference: string): string | undefined =>
  aliases.get(normalise(reference));

/** What callers may name, for messages. */
export const knownImages = (aliases: ImageAliases): string =>
  [...aliases.keys()].map((reference) => reference.replace(/:latest$/u, '')).join(', ');
