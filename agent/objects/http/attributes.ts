import { LIMITS } from '../../../shared/limits.ts';
import { S3Error } from '../protocol/errors.ts';
import { header, type ObjectCall } from './operation.ts';
import type { WriteAttributes } from '../store/object-info.ts';
import { encodeHeaders } from '../store/stored-headers.ts';

/** Headers that are stored with an object and returned with it, in addition to `x-amz-meta-*`. */
const KEPT_HEADERS: ReadonlySet<string> = new Set([
  ...['cache-control', 'content-disposition', 'content-language', 'expires'],
]);
const META = 'x-amz-meta-';
/** Characters that a header can hold (RFC 9110, section 5.5). */
const HEADER_VALUE = /^[\t\u0020-\u007e\u0080-\u00ff]*$/u;
const ID_MAX = 4_294_967_294;

/** Both spellings of the headers for owner and mode (docs/object-api.md, Operations). */
function posixHeader(call: ObjectCall, name: string): string | undefined {
  return header(call, `x-archil-${name}`) ?? header(call, `x-service-${name}`);
}

function readId(call: ObjectCall, name: 'uid' | 'gid'): number | undefined {
  const text = posixHeader(call, name);
  if (text === undefined) return undefined;
  if (!/^\d{1,10}$/u.test(text) || Number(text) > ID_MAX) {
    throw new S3Error('InvalidArgument', `${name} must be a number from 0 to ${ID_MAX}.`);
  }
  return Number(text);
}

function readMode(call: ObjectCall): number | undefined {
  const text = posixHeader(call, 'mode');
  if (text === undefined) return undefined;
  if (!/^[0-7]{1,4}$/u.test(text) || Number.parseInt(text, 8) > 0o777) {
    throw new S3Error('InvalidArgument', 'mode must be octal digits, at most 777.');
  }
  return Number.parseInt(text, 8);
}

/** Drops `aws-chunked`, which describes the transfer and not the object. */
function contentEncoding(call: ObjectCall): string | undefined {
  const codings = (header(call, 'content-encoding') ?? '').split(',').map((text) => text.trim());
  return (
    codings.filter((coding) => coding !== '' && coding !== 'aws-chunked').join(', ') || undefined
  );
}

/** @throws S3Error MetadataTooLarge */
function checkSize(kept: Readonly<Record<string, string>>): void {
  // Counted by S3's rule: the bytes of names, without their prefix, and values, in UTF-8.
  const metadataBytes = Object.entries(kept)
    .filter(([name]) => name.startsWith(META))
    .reduce((sum, [name, value]) => sum + name.length - META.length + Buffer.byteLength(value), 0);
  if (metadataBytes > LIMITS.objectMetadataBytesMax) {
    throw new S3Error(
      'MetadataTooLarge',
      `The metadata has ${metadataBytes} bytes; at most ${LIMITS.objectMetadataBytesMax} are kept.`,
    );
  }
  if (encodeHeaders(kept).length > LIMITS.objectHeadersBytesMax) {
    throw new S3Error(
      'MetadataTooLarge',
      'The stored headers of the object are too large together.',
    );
  }
}

function keptHeaders(call: ObjectCall): Record<string, string> {
  const kept: Record<string, string> = {};
  for (const [name, value] of Object.entries(call.headers)) {
    if (!KEPT_HEADERS.has(name) && !name.startsWith(META)) continue;
    // The HTTP parser does not check a presigned URL's query.
    if (!HEADER_VALUE.test(value)) {
      throw new S3Error('InvalidArgument', `${name} has a value that no header can have.`);
    }
    kept[name] = value;
  }
  const encoding = contentEncoding(call);
  if (encoding !== undefined) kept['content-encoding'] = encoding;
  checkSize(kept);
  return kept;
}

/**
 * Reads the attributes that a request gives the object that it writes.
 * @throws S3Error InvalidArgument
 */
export function readAttributes(call: ObjectCall): WriteAttributes {
  const contentType = header(call, 'content-type');
  const [mode, uid, gid] = [readMode(call), readId(call, 'uid'), readId(call, 'gid')];
  return {
    ...(contentType === undefined ? {} : { contentType }),
    ...(mode === undefined ? {} : { mode }),
    ...(uid === undefined ? {} : { uid }),
    ...(gid === undefined ? {} : { gid }),
    headers: keptHeaders(call),
  };
}
