import { AppError } from '../../../shared/errors.ts';
import { formatImageReference, parseImageReference } from '../../../shared/image-reference.ts';
import type { JobPayload } from '../../../shared/jobs/jobs.ts';
import type { CreateSandbox } from '../../../shared/schemas/sandbox-input.ts';
import type { Host } from '../../region/known-hosts.ts';
import type { Deps } from '../../region/deps.ts';
import { buildsImages, noBuilders } from '../images/images.ts';
import { isReferenceTo, referenceOf } from '../../region/image-aliases.ts';

/** Which image a new sandbox begins with, and on which hosts it can be. */
export interface ChosenImage {
  readonly canBeOn: (host: Host) => boolean;
  /** Undefined: the default image of the host. */
  readonly image?: JobPayload<'sandbox.create'>['image'];
  /**
   * The image that the sandbox will show: the caller's reference, or what the host's image really
   * is.
   */
  readonly baseImageOn: (host: Host) => string;
}

const anyHost = (): boolean => true;

/**
 * Finds out what image the caller means. A reference is the default image of a host that names it
 * so; any other is built when the sandbox is created.
 * @throws AppError `bad_request`; `not_enabled` when it would have to be built, which no host of
 *   the region does; for an `image_id` `not_found`, also of another account's private image, and
 *   `image_not_ready`
 */
export async function chooseImage(
  deps: Deps,
  accountId: string,
  { base_image: given, image_id: imageId }: CreateSandbox,
): Promise<ChosenImage> {
  if (given !== undefined && imageId !== undefined) {
    throw new AppError('bad_request', 'base_image and image_id exclude each other');
  }
  if (imageId !== undefined)
    return { canBeOn: anyHost, ...(await builtImage(deps, accountId, imageId)) };
  if (given === undefined)
    return { canBeOn: anyHost, baseImageOn: (host) => referenceOf(host.image) };
  const reference = formatImageReference(parseImageReference(given, 'base_image'));
  const baseImageOn = (): string => given;
  const { imageAliases } = deps.config;
  const isMeant = (image: Host['image']): boolean => isReferenceTo(image, imageAliases, given);
  if (deps.hub.images.some(isMeant)) {
    return { canBeOn: ({ image }) => isMeant(image), baseImageOn };
  }
  const hosts = [...deps.hub.inRandomOrder()].filter(({ load }) => load.sandboxes.isEnabled);
  // Without any host the answer is another one.
  if (hosts.length > 0 && !hosts.some(buildsImages)) throw noBuilders();
  return { canBeOn: buildsImages, baseImageOn, image: { reference } };
}

/** @throws AppError `not_found`, `image_not_ready` */
async function builtImage(
  { directory: { images } }: Deps,
  accountId: string,
  imageId: string,
): Promise<Pick<ChosenImage, 'image' | 'baseImageOn'>> {
  const record = await images.find(accountId, imageId);
  if (record === undefined) throw new AppError('not_found', `there is no image ${imageId}`);
  const { source: reference, digest, status } = record;
  if (digest === undefined) {
    throw new AppError('image_not_ready', `the image has no successful build; it is ${status}`);
  }
  await images.touch(imageId);
  return { image: { reference, digest }, baseImageOn: () => '' };
}
