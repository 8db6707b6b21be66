import type { IncomingMessage } from 'node:http';
import { S3Error } from '../protocol/errors.ts';
import { isHeaderName, type RawHeaders, toHeaderValue } from '../protocol/raw-headers.ts';
import { META } from '../store/stored-headers.ts';

/**
 * The headers of an object request; names in lower case, repeated ones joined as Node joins them.
 */
export interface ObjectHeaders {
  readonly values: Readonly<Record<string, string>>;
  /** Names and values by turns, in the order of the request. */
  readonly raw: RawHeaders;
}

const HOISTED = /^x-amz-/iu;
/** Parameters with which a presigned URL is authenticated (SigV4, query form). */
const SIGNATURE_PARAMETERS: ReadonlySet<string> = new Set(
  [
    'algorithm',
    'content-sha256',
    'credential',
    'date',
    'expires',
    'signature',
    'signedheaders',
  ].map((name) => `x-amz-${name}`),
);

/** Whether a query parameter stands for a header: signers move headers there when they presign. */
export const isHoisted = (name: string): boolean =>
  HOISTED.test(name) && !SIGNATURE_PARAMETERS.has(name.toLowerCase());

/** Whether a query parameter belongs to the signature of a presigned URL. */
export const isSignatureParameter = (name: string): boolean =>
  SIGNATURE_PARAMETERS.has(name.toLowerCase());

/**
 * The headers of a request, including those that a presigned URL carries in its query: they are
 * signed there, and obeyed like any other header.
 * @throws S3Error InvalidArgument when a header is given in both places, or a parameter has a name
 *   that no header can have
 */
export function readHeaders(
  { headers, rawHeaders }: Pick<IncomingMessage, 'headers' | 'rawHeaders'>,
  query: ReadonlyMap<string, string>,
): ObjectHeaders {
  const values: Record<string, string> = {};
  for (const [name, value] of Object.entries(headers)) {
    if (value !== undefined) values[name] = typeof value === 'string' ? value : value.join(', ');
  }
  const raw = [...rawHeaders];
  for (const [parameter, value] of query) {
    if (!isHoisted(parameter)) continue;
    if (!isHeaderName(parameter)) {
      throw new S3Error('InvalidArgument', 'A query parameter has a name that no header can have.');
    }
    const name = parameter.toLowerCase();
    if (values[name] !== undefined) {
      throw new S3Error('InvalidArgument', `${name} is given as a header and in the query.`);
    }
    const given = name.startsWith(META) ? toHeaderValue(value) : value;
    values[name] = given;
    raw.push(name, given);
  }
  return { values, raw };
}
