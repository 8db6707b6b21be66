import {
  type ImageBuildRef,
  imageIdOf,
  type ImageRecord,
} from '../../../shared/directory/images.ts';
import { AppError, type ErrorCode } from '../../../shared/errors.ts';
import { formatImageReference, parseImageReference } from '../../../shared/image-reference.ts';
import type { JobPayload } from '../../../shared/jobs/jobs.ts';
import { API_LIMITS } from '../limits.ts';
import { REGION_LIMITS } from '../../region/limits.ts';
import type { BuildImage } from '../../../shared/schemas/image.ts';
import type { Host } from '../../region/known-hosts.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import type { Deps } from '../../region/deps.ts';

/** A host that answers with these has begun nothing, so another host may be asked. */
const NOT_TAKEN: ReadonlySet<ErrorCode> = new Set([
  'no_capacity',
  'host_full',
  'not_enabled',
  'unavailable',
]);

/**
 * Some hosts that build images, the least busy first.
 * @throws AppError `not_enabled` when there are hosts, but none builds; `no_capacity` when none can
 */
function rankBuilders(hub: Deps['hub']): string[] {
  if (hasNoHosts(hub)) {
    throw new AppError('no_capacity', 'no host is available now; try again');
  }
  if (!hub.inRandomOrder().some(buildsImages)) throw noBuilders();
  const builders = hub
    .inRandomOrder()
    .filter((host) => buildsImages(host) && !host.load.storageLow)
    .filter(({ load }) => !load.draining && load.cordoned !== true)
    .take(REGION_LIMITS.placementCandidates)
    .toArray();
  if (builders.length === 0) {
    throw new AppError('no_capacity', 'no host can build an image now; try again');
  }
  return builders.sort((a, b) => shareTaken(a) - shareTaken(b)).map(({ hostId }) => hostId);
}

const hasNoHosts = (hub: Deps['hub']): boolean => hub.inRandomOrder().next().done === true;

/** Whether callers can build images on a host. */
export const buildsImages = ({ load: { images } }: Host): boolean => (images?.max ?? 0) > 0;

export const noBuilders = (): AppError =>
  new AppError('not_enabled', 'the hosts of this region build no images');

const shareTaken = ({ load: { images }, jobsPending }: Host): number =>
  ((images?.active ?? 0) + jobsPending) / (images?.max ?? 1);

/**
 * Begins the build of an image, or joins the one under way (docs/images.md). The build goes on when
 * the caller hangs up.
 * @returns the image as it is now
 * @throws AppError `bad_request`, `no_capacity`, `not_enabled`, `unavailable`, `timeout`
 */
export async function buildImage(
  deps: Deps,
  accountId: string,
  { source: given, registry_auth: credentials }: BuildImage,
  { requestId }: RequestContext,
): Promise<ImageRecord> {
  const reference = parseImageReference(given, 'source');
  const source = formatImageReference(reference);
  const image = { source, accountId: credentials === undefined ? undefined : accountId };
  const hosts = rankBuilders(deps.hub);
  const { images } = deps.directory;
  // A private image that the region has lost comes back by this build alone.
  const isFixed = reference.digest !== undefined && credentials === undefined;
  const begun = await images.begin(image, isFixed);
  if (begun.kind === 'begun') {
    const payload = { ...begun.build, accountId, source, ...(credentials && { credentials }) };
    await place(deps, begun.build, payload, { hosts, requestId });
  }
  const record = await images.find(accountId, imageIdOf(image));
  if (record !== undefined) return record;
  throw new AppError('unavailable', 'the build could not be begun; try again');
}

/** Asks one host after the other until one takes the build. */
async function place(
  deps: Deps,
  build: ImageBuildRef,
  payload: JobPayload<'image.build'>,
  { hosts, requestId }: { readonly hosts: readonly string[]; readonly requestId: string },
): Promise<void> {
  const deadlineAt = Date.now() + API_LIMITS.sandboxBeginMs;
  let refusal = new AppError('no_capacity', 'no host can build an image now; try again');
  for (const hostId of hosts.slice(0, API_LIMITS.sandboxPlacementsMax)) {
    try {
      await deps.jobs.call({ kind: 'image.build', payload, hostId, requestId, deadlineAt });
      return;
    } catch (error) {
      if (!(error instanceof AppError)) throw error;
      // Any other error may come after the build has begun: its claim tells.
      if (!NOT_TAKEN.has(error.code)) throw error;
      refusal = error;
    }
  }
  await deps.directory.images.abandon(build);
  throw refusal;
}

/** @throws AppError `not_found`, also for another account's private image; `not_enabled` */
export async function findImage(
  { directory, hub }: Deps,
  accountId: string,
  imageId: string,
): Promise<ImageRecord> {
  if (!hasNoHosts(hub) && !hub.inRandomOrder().some(buildsImages)) throw noBuilders();
  const record = await directory.images.find(accountId, imageId);
  if (record === undefined) throw new AppError('not_found', 'image not found');
  return record;
}
