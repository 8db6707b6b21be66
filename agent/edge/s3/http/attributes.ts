import { EDGE_LIMITS } from '../../limits.ts';
import { S3Error } from '../protocol/errors.ts';
import { isHeaderValue } from '../protocol/raw-headers.ts';
import { header, type ObjectCall } from './operation.ts';
import type { WriteAttributes } from '../store/object-info.ts';
import { encodeHeaders, isStoredHeader, META } from '../store/stored-headers.ts';

const ID_MAX = 4_294_967_294;

type WithHeaders = Pick<ObjectCall, 'headers'>;

/** Both spellings of the headers for owner and mode (docs/object-api.md, Operations). */
function posixHeader(call: WithHeaders, name: string): string | undefined {
  return header(call, `x-archil-${name}`) ?? header(call, `x-service-${name}`);
}

function readId(call: WithHeaders, name: 'uid' | 'gid'): number | undefined {
  const text = posixHeader(call, name);
  if (text === undefined) return undefined;
  if (!/^\d{1,10}$/u.test(text) || Number(text) > ID_MAX) {
    throw new S3Error('InvalidArgument', `${name} must be a number from 0 to ${ID_MAX}.`);
  }
  return Number(text);
}

function readMode(call: WithHeaders): number | undefined {
  const text = posixHeader(call, 'mode');
  if (text === undefined) return undefined;
  if (!/^[0-7]{1,4}$/u.test(text) || Number.parseInt(text, 8) > 0o777) {
    throw new S3Error('InvalidArgument', 'mode must be octal digits, at most 777.');
  }
  return Number.parseInt(text, 8);
}

/** Drops `aws-chunked`, which describes the transfer and not the object. */
function contentEncoding(given: string): string | undefined {
  const codings = given.split(',').map((text) => text.trim());
  return (
    codings.filter((coding) => coding !== '' && coding !== 'aws-chunked').join(', ') || undefined
  );
}

/** @throws S3Error MetadataTooLarge */
function checkSize(kept: Readonly<Record<string, string>>): void {
  // Counted by S3's rule: the bytes of names, without their prefix, and of values.
  const metadataBytes = Object.entries(kept)
    .filter(([name]) => name.startsWith(META))
    .reduce((sum, [name, value]) => sum + name.length - META.length + value.length, 0);
  if (metadataBytes > EDGE_LIMITS.objectMetadataBytesMax) {
    throw new S3Error(
      'MetadataTooLarge',
      `The metadata has ${metadataBytes} bytes; at most ${EDGE_LIMITS.objectMetadataBytesMax} are kept.`,
    );
  }
  if (encodeHeaders(kept).length > EDGE_LIMITS.objectHeadersBytesMax) {
    throw new S3Error(
      'MetadataTooLarge',
      'The stored headers of the object are too large together.',
    );
  }
}

function keptHeaders(call: WithHeaders): Record<string, string> {
  const kept: Record<string, string> = {};
  for (const [name, given] of Object.entries(call.headers)) {
    const value = name === 'content-encoding' ? contentEncoding(given) : given;
    if (value === undefined || !isStoredHeader(name)) continue;
    // The HTTP parser checks neither the query of a presigned URL nor the fields of a form.
    if (!isHeaderValue(value)) {
      throw new S3Error('InvalidArgument', `${name} has a value that no header can have.`);
    }
    kept[name] = value;
  }
  checkSize(kept);
  return kept;
}

/**
 * Reads the attributes that a request gives the object that it writes.
 * @throws S3Error InvalidArgument
 */
export function readAttributes(call: WithHeaders): WriteAttributes {
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
