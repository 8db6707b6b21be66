import { S3Error } from '../protocol/errors.ts';
import type { ObjectInfo, Precondition } from '../store/object-info.ts';
import { checkWritePreconditions } from './write-preconditions.ts';

/** Conditions for a deletion, as headers or XML elements give them. */
export interface DeleteConditions {
  readonly etag?: string | undefined;
  /** A date of HTTP or of ISO 8601. */
  readonly lastModified?: string | undefined;
  readonly sizeBytes?: string | undefined;
}

const secondsOf = (ms: number): number => Math.floor(ms / 1000);

/**
 * The precondition of a conditional delete. An object that is absent meets every condition, since
 * it is as deleted as it can be.
 * @throws S3Error InvalidArgument for a malformed condition
 */
export function deletePrecondition(conditions: DeleteConditions): Precondition {
  const { etag, lastModified, sizeBytes } = conditions;
  const wantedMs = lastModified === undefined ? undefined : Date.parse(lastModified);
  if (Number.isNaN(wantedMs)) throw new S3Error('InvalidArgument', 'The time is malformed.');
  if (sizeBytes !== undefined && !/^\d{1,15}$/u.test(sizeBytes)) {
    throw new S3Error('InvalidArgument', 'The size must be a number.');
  }
  const fits = (present: ObjectInfo): boolean =>
    (wantedMs === undefined || secondsOf(present.modifiedAt.getTime()) === secondsOf(wantedMs)) &&
    (sizeBytes === undefined || present.sizeBytes === Number(sizeBytes));
  return (present) => {
    if (present === undefined) return;
    if (etag !== undefined) checkWritePreconditions({ 'if-match': etag }, present);
    if (!fits(present)) throw new S3Error('PreconditionFailed');
  };
}
