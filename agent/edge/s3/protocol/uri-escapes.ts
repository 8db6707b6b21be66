import { S3Error } from './errors.ts';

const UNRESERVED = /^[A-Za-z0-9\-._~]$/;

const escapeByte = (byte: number): string => `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;

function canonicalEscape(found: string, hex: string | undefined): string {
  if (hex === undefined) {
    const byte = found.charCodeAt(0);
    if (found === '%' || byte > 0xff) throw new S3Error('InvalidURI');
    return escapeByte(byte);
  }
  const byte = Number.parseInt(hex, 16);
  const character = String.fromCharCode(byte);
  return UNRESERVED.test(character) ? character : escapeByte(byte);
}

/**
 * The form in which SigV4 signs a part of a URI: everything but `A-Za-z0-9-._~` escaped, upper-case
 * hex. Works on bytes, so what is not UTF-8 passes too.
 * @param part as received, one character a byte
 * @throws S3Error InvalidURI
 */
export const canonicalUriPart = (part: string): string =>
  part.replaceAll(/%([0-9A-Fa-f]{2})|[^A-Za-z0-9\-._~]/g, canonicalEscape);

/** The same of a path; an escaped slash counts as a slash, as it does in keys. */
export const canonicalUriPath = (path: string): string =>
  canonicalUriPart(path).replaceAll('%2F', '/');

/**
 * A key as a listing with `encoding-type=url` carries it. S3 writes a space as `+`; `%20` is read
 * alike by clients that decode forms and by those that decode URIs.
 */
export const urlEncodeKey = (key: string): string =>
  canonicalUriPath(Buffer.from(key).toString('latin1').replaceAll('%', '%25'));
