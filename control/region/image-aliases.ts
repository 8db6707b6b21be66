import { formatImageReference, parseImageReference } from '../../shared/image-reference.ts';
import type { SandboxImage } from '../../shared/schemas/sandbox-image.ts';

/** References, normalised, that mean the image of a host whatever that image is. */
export type ImageAliases = ReadonlySet<string>;

/** How a host's image is called when it does not say what it is. */
const DEFAULT_IMAGE = 'default';

/** The one spelling for all that mean the same. @throws AppError `bad_request` */
const normalise = (reference: string): string =>
  formatImageReference(parseImageReference(reference));

/** @param pairs the setting IMAGE_ALIASES: `<reference>=default` */
export const readImageAliases = (pairs: readonly string[]): ImageAliases =>
  new Set(pairs.map((pair) => normalise(pair.slice(0, pair.lastIndexOf('=')))));

/** The reference that says best what the image is: `debian:12`. */
export const referenceOf = (image: SandboxImage | undefined): string =>
  image === undefined ? DEFAULT_IMAGE : `${image.name}:${image.version}`;

const namesOf = (image: SandboxImage | undefined): string[] => {
  if (image === undefined) return [];
  const { name, codename } = image;
  return [referenceOf(image), ...(codename === undefined ? [] : [`${name}:${codename}`]), name];
};

/** Whether the reference means this image: it names it, or is an alias of any. */
export function isReferenceTo(
  image: SandboxImage | undefined,
  aliases: ImageAliases,
  reference: string,
): boolean {
  const sought = normalise(reference);
  return aliases.has(sought) || namesOf(image).some((name) => normalise(name) === sought);
}
