import { createHash } from 'node:crypto';
import { S3Error } from '../protocol/errors.ts';
import { headerValues, type RawHeaders } from '../protocol/raw-headers.ts';
import { canonicalUriPart, canonicalUriPath } from '../protocol/uri-escapes.ts';

export const SIGNATURE_PARAMETER = 'X-Amz-Signature';
const TARGET_LENGTH_MAX = 16 * 1024;
const PARAMETERS_MAX = 128;

/** A request as Node's HTTP server delivers it. */
export interface RequestHead {
  readonly method: string;
  /** Path and query exactly as received. */
  readonly target: string;
  readonly rawHeaders: RawHeaders;
}

/** A parameter of the query, in the form in which it is signed. */
type Parameter = readonly [name: string, value: string];

/** A request target in its parts; the path as received. */
export interface Target {
  readonly path: string;
  readonly parameters: readonly Parameter[];
}

/** @throws S3Error InvalidURI */
export function splitTarget(target: string): Target {
  if (!target.startsWith('/') || target.length > TARGET_LENGTH_MAX) {
    throw new S3Error('InvalidURI');
  }
  const mark = target.indexOf('?');
  if (mark === -1) return { path: target, parameters: [] };
  const pairs = target.slice(mark + 1).split('&', PARAMETERS_MAX + 1);
  if (pairs.length > PARAMETERS_MAX) throw new S3Error('InvalidURI', 'Too many parameters.');
  const parameters = pairs
    .filter((pair) => pair !== '')
    .map((pair): Parameter => {
      // Servers read a plus in a query as a space; signers write %20.
      const [name = '', ...value] = pair.replaceAll('+', '%20').split('=');
      return [canonicalUriPart(name), canonicalUriPart(value.join('='))];
    });
  return { path: target.slice(0, mark), parameters };
}

const compare = (a: string, b: string): number => (a < b ? -1 : Number(a > b));

const canonicalQuery = (parameters: readonly Parameter[]): string =>
  parameters
    .filter(([name]) => name !== SIGNATURE_PARAMETER)
    .sort(([nameA, valueA], [nameB, valueB]) => compare(nameA, nameB) || compare(valueA, valueB))
    .map(([name, value]) => `${name}=${value}`)
    .join('&');

// Not `trim` and `\s`: in the bytes of UTF-8, 0xA0 is half of a letter.
const canonicalValue = (value: string): string =>
  value.replaceAll(/[ \t]+/g, ' ').replaceAll(/^ | $/g, '');

function canonicalHeaders(headers: RawHeaders, signed: readonly string[]): string {
  return signed
    .map((name) => {
      const values = headerValues(headers, name);
      if (values.length === 0) {
        throw new S3Error('SignatureDoesNotMatch', `The signed header ${name} is missing.`);
      }
      return `${name}:${values.map(canonicalValue).join(',')}\n`;
    })
    .join('');
}

/**
 * SigV4 "Create a canonical request", and its hash in hex. As S3 wants it: the path is escaped once
 * and not normalised.
 * @throws S3Error SignatureDoesNotMatch when a signed header is missing; InvalidURI
 */
export function hashCanonicalRequest(
  head: RequestHead,
  target: Target,
  signedHeaders: readonly string[],
  declaredPayload: string,
): string {
  const canonicalRequest = [
    head.method,
    canonicalUriPath(target.path),
    canonicalQuery(target.parameters),
    canonicalHeaders(head.rawHeaders, signedHeaders),
    signedHeaders.join(';'),
    declaredPayload,
  ].join('\n');
  // Node delivers header values with one character per byte, and the client signed bytes.
  return createHash('sha256').update(canonicalRequest, 'latin1').digest('hex');
}
