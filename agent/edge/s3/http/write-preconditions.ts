import { S3Error } from '../protocol/errors.ts';
import { quoted } from './operation.ts';
import { withQuotes } from './unquoted-tags.ts';
import { checkPreconditions, type RequestHeaders } from '../protocol/preconditions.ts';
import type { ObjectInfo, Precondition } from '../store/object-info.ts';

/** The header prefix of a copy's conditions on its source. */
const COPY_SOURCE = 'x-amz-copy-source-';

function conditions(headers: RequestHeaders, prefix: string): Record<string, string> {
  const names = ['if-match', 'if-none-match', 'if-modified-since', 'if-unmodified-since'];
  return Object.fromEntries(
    names.flatMap((name) => {
      const value = headers[`${prefix}${name}`];
      return value === undefined ? [] : [[name, withQuotes(value)]];
    }),
  );
}

function check(found: Record<string, string>, { etag, modifiedAt }: ObjectInfo): void {
  if (checkPreconditions(found, { etag: quoted(etag), modifiedAt }) !== 'proceed') {
    throw new S3Error('PreconditionFailed');
  }
}

/**
 * Conditional writes: `If-Match` and `If-None-Match` against the object that is there (RFC 9110,
 * section 13.1).
 * @throws S3Error PreconditionFailed; NoSuchKey when If-Match asks for an object that is absent
 */
export function checkWritePreconditions(
  headers: RequestHeaders,
  present: ObjectInfo | undefined,
): void {
  const found = conditions(headers, '');
  if (present !== undefined) check(found, present);
  else if (found['if-match'] !== undefined) throw new S3Error('NoSuchKey');
}

/**
 * The precondition of a request that writes an object. Undefined without conditions, so that a
 * plain write does not open the object that is there: on a bucket, all of it may have to be fetched
 * first.
 */
export const writePrecondition = (headers: RequestHeaders): Precondition | undefined =>
  Object.keys(conditions(headers, '')).length === 0
    ? undefined
    : (present) => checkWritePreconditions(headers, present);

/** @throws S3Error PreconditionFailed unless a copy's source meets the request's conditions */
export const checkCopySource = (headers: RequestHeaders, source: ObjectInfo): void =>
  check(conditions(headers, COPY_SOURCE), source);
