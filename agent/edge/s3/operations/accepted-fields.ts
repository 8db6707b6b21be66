import { isHoisted, isSignatureParameter, type ObjectHeaders } from '../http/request-headers.ts';
import type { ObjectTarget } from '../http/target.ts';
import { S3Error } from '../protocol/errors.ts';
import { headerNames, isObjectHeader } from '../protocol/raw-headers.ts';

/**
 * The headers and query parameters that an operation obeys. A request that uses any other one with
 * a meaning in S3 is refused: an S3 tool takes a success for a promise that its whole request was
 * obeyed.
 */
export interface AcceptedFields {
  /** In lower case; one that ends in `*` stands for all headers that begin so. */
  readonly headers?: readonly string[];
  readonly query?: readonly string[];
}

/**
 * Headers besides {@link isObjectHeader} to which HTTP gives a meaning, and those of the dialects
 * that other object stores speak. All others, such as those of proxies and browsers, cannot change
 * what a request means.
 */
const MEANINGFUL =
  /^(?:x-(?:goog|minio|oss|obs|cos|ms)-|content-|if-)|^(?:range|expires|cache-control)$/u;

/** Meaningful headers that every operation takes. */
const COMMON_HEADERS: ReadonlySet<string> = new Set([
  // Authentication and framing read them.
  ...['x-amz-content-sha256', 'x-amz-date', 'x-amz-decoded-content-length', 'x-amz-trailer'],
  ...['content-length'],
  // Obeyed by the gateway.
  'x-amz-expected-bucket-owner',
  // Harmless: what the client is, and ids of requests before this one.
  ...['x-amz-user-agent', 'x-amz-id-2', 'x-amz-request-id', 'x-amz-cf-id'],
  // Harmless: consent to being charged; nobody is.
  'x-amz-request-payer',
  // Harmless unless the operation stores it: clients name the type of a body that they do not have.
  'content-type',
  // Harmless unless the operation stores it: browsers send it when they reload a page.
  'cache-control',
  // Only `aws-chunked`, unless the operation stores it.
  'content-encoding',
]);

/** Values of headers that describe what this server does in any case. Others are refused. */
const ONLY_VALUES: ReadonlyMap<string, string> = new Map([
  ['x-amz-acl', 'private'],
  ['x-amz-request-payer', 'requester'],
  ['x-amz-storage-class', 'STANDARD'],
  ['x-amz-tagging-directive', 'COPY'],
]);

/** Headers whose values may come in several lines, which Node joins. */
const LISTS =
  /^(?:x-amz-(?:meta-|object-attributes$|trailer$)|if-|cache-control$|content-(?:enc|lang))/u;

/** S3 ignores parameters that begin with `x-`, so that clients can mark requests in its logs. */
const isHarmlessParameter = (name: string): boolean =>
  isSignatureParameter(name) || (/^x-/iu.test(name) && !isObjectHeader(name));

const refused = (name: string, what: string): S3Error =>
  new S3Error('NotImplemented', `${name} is not implemented with ${what}.`);

function lists(names: readonly string[], name: string): boolean {
  return names.some((each) =>
    each.endsWith('*') ? name.startsWith(each.slice(0, -1)) : name === each,
  );
}

function assertHeader(
  operation: string,
  name: string,
  value: string,
  accepted: readonly string[],
): void {
  const isDeclared = lists(accepted, name);
  if (!isDeclared && !COMMON_HEADERS.has(name)) throw refused(operation, `the header ${name}`);
  const only = !isDeclared && name === 'content-encoding' ? 'aws-chunked' : ONLY_VALUES.get(name);
  if (only !== undefined && value !== only)
    throw refused(operation, `another ${name} than ${only}`);
}

/**
 * Refuses a request that uses more than its operation obeys.
 * @param operation its name, for the caller
 * @param flag the query parameter that selects the operation; empty when there is none
 * @throws S3Error NotImplemented; InvalidArgument for a header or parameter that is given twice
 */
export function assertAccepted(
  { name: operation, flag = '', accepts }: { name: string; flag?: string; accepts: AcceptedFields },
  { values, raw }: ObjectHeaders,
  { query, repeated }: Pick<ObjectTarget, 'query' | 'repeated'>,
): void {
  const { headers = [], query: parameters = [] } = accepts;
  const seen = new Set<string>();
  for (const name of headerNames(raw)) {
    if (!isObjectHeader(name) && !MEANINGFUL.test(name)) continue;
    if (seen.has(name) && !LISTS.test(name)) {
      throw new S3Error('InvalidArgument', `The header ${name} is given twice.`);
    }
    seen.add(name);
    assertHeader(operation, name, values[name] ?? '', headers);
  }
  for (const name of query.keys()) {
    if (name === flag || isHoisted(name) || parameters.includes(name)) continue;
    if (!isHarmlessParameter(name)) throw refused(operation, `the query parameter ${name}`);
  }
  if (repeated !== undefined) {
    throw new S3Error('InvalidArgument', `The query parameter ${repeated} is given twice.`);
  }
}
