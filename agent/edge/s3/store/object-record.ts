import { isAscii } from 'node:buffer';
import { hash } from 'node:crypto';
import { extname } from 'node:path';
import { lookup } from 'mime-types';
import type { FileIdentity } from '../../../native/native.ts';
import { decodeHeaders, encodeHeaders } from './stored-headers.ts';
import { CHECKSUM_ALGORITHMS, CHECKSUM_BYTES, type ObjectChecksum } from '../protocol/checksum.ts';

/**
 * The properties of an object that its file does not have, in an extended attribute that containers
 * can neither see nor set (xattr(7)). It is valid only while the file has the size and modification
 * time that it names, so a command that changes the file invalidates it.
 */
export const RECORD_ATTRIBUTE = 'trusted.berth.object';

/** The MD5 of an empty object. */
export const EMPTY_ETAG = 'd41d8cd98f00b204e9800998ecf8427e';

/**
 * Stands in for the number of parts when the 16 bytes are not the object's MD5, which would take
 * too long to compute, but a value that changes with every append.
 */
export const UNHASHED = 0xffff;

export interface ObjectRecord {
  readonly md5: Buffer;
  /** The number of parts of a multipart object; 0 for other objects, or UNHASHED. */
  readonly partCount: number;
  /** Undefined when the key implies it. */
  readonly contentType: string | undefined;
  /** Headers that are returned with the object; names in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  readonly checksum?: ObjectChecksum | undefined;
}

/*
 * u8 version, u16 number of parts, u64 size, i64 modification time in ns, 16 bytes of MD5; in
 * versions 2 and 4 a checksum: u8 number of the algorithm with the highest bit set for a composite
 * one, and the digest; content type; then, if there are headers, a line feed and the headers
 * (stored-headers.ts). Versions 3 and 4 have one byte for each character of the headers, versions 1
 * and 2 UTF-8. Headers in ASCII, which is the same in both, have the lower version: earlier
 * programs read it. Little-endian and, without headers, short: ext4 keeps it in the inode, beside
 * the file's other properties.
 */
const VERSION = 1;
const WITH_CHECKSUM = 1;
const WITH_BYTES = 2;
const VERSION_MAX = VERSION + WITH_CHECKSUM + WITH_BYTES;
const COMPOSITE = 0x80;
const HEAD_BYTES = 35;
const SEPARATOR = '\n'; // A content type cannot contain one.

export function encodeRecord(record: ObjectRecord, file: FileIdentity): Buffer {
  const head = Buffer.alloc(HEAD_BYTES);
  const checksum = encodeChecksum(record.checksum);
  head.writeUInt16LE(record.partCount, 1);
  head.writeBigUInt64LE(BigInt(file.sizeBytes), 3);
  head.writeBigInt64LE(file.mtimeNs, 11);
  record.md5.copy(head, 19);
  const type = Buffer.from(record.contentType ?? '', 'latin1');
  const headers = encodeHeaders(record.headers);
  const withChecksum = checksum.length === 0 ? 0 : WITH_CHECKSUM;
  head.writeUInt8(VERSION + withChecksum + (isAscii(headers) ? 0 : WITH_BYTES), 0);
  const separator = headers.length === 0 ? [] : [Buffer.from(SEPARATOR)];
  return Buffer.concat([head, checksum, type, ...separator, headers]);
}

function encodeChecksum(checksum: ObjectChecksum | undefined): Buffer {
  if (checksum === undefined) return Buffer.alloc(0);
  const { algorithm, type, value } = checksum;
  const number = CHECKSUM_ALGORITHMS.indexOf(algorithm) | (type === 'COMPOSITE' ? COMPOSITE : 0);
  const [digest = ''] = value.split('-');
  return Buffer.concat([Buffer.of(number), Buffer.from(digest, 'base64')]);
}

/** @returns undefined when a later version of this program wrote it */
function decodeChecksum(bytes: Buffer, partCount: number): ObjectChecksum | undefined {
  const number = bytes[HEAD_BYTES] ?? 0;
  const algorithm = CHECKSUM_ALGORITHMS[number & ~COMPOSITE];
  if (algorithm === undefined) return undefined;
  const start = HEAD_BYTES + 1;
  const digest = bytes.toString('base64', start, start + CHECKSUM_BYTES[algorithm]);
  if ((number & COMPOSITE) === 0) return { algorithm, type: 'FULL_OBJECT', value: digest };
  return { algorithm, type: 'COMPOSITE', value: `${digest}-${partCount}` };
}

/** @returns undefined when there is no record or it does not match the file's content */
export function decodeRecord(
  bytes: Buffer | undefined,
  file: FileIdentity,
): ObjectRecord | undefined {
  if (bytes === undefined || bytes.length < HEAD_BYTES) return undefined;
  const flags = bytes.readUInt8(0) - VERSION;
  if (flags < 0 || flags > VERSION_MAX - VERSION) return undefined;
  if (bytes.readBigUInt64LE(3) !== BigInt(file.sizeBytes)) return undefined;
  if (bytes.readBigInt64LE(11) !== file.mtimeNs) return undefined;
  const partCount = bytes.readUInt16LE(1);
  const hasChecksum = (flags & WITH_CHECKSUM) !== 0;
  const checksum = hasChecksum ? decodeChecksum(bytes, partCount) : undefined;
  if (hasChecksum && checksum === undefined) return undefined;
  const start = HEAD_BYTES + (checksum === undefined ? 0 : 1 + CHECKSUM_BYTES[checksum.algorithm]);
  const end = bytes.indexOf(SEPARATOR, start);
  const contentType = bytes.toString('latin1', start, end === -1 ? bytes.length : end);
  const encoding = (flags & WITH_BYTES) === 0 ? 'utf8' : 'latin1';
  return {
    partCount,
    checksum,
    md5: Buffer.from(bytes.subarray(19, HEAD_BYTES)),
    contentType: contentType === '' ? undefined : contentType,
    headers: end === -1 ? {} : decodeHeaders(bytes.subarray(end + SEPARATOR.length), encoding),
  };
}

/**
 * The ETag without quotes: an MD5 as S3 has it, or one that changes with the contents. The latter
 * has a dash like that of an upload in parts: tools take 32 bare digits for the MD5 of the bytes,
 * and then refuse the object as damaged.
 */
export function etagOf(record: ObjectRecord | undefined, file: FileIdentity): string {
  if (record === undefined) {
    const { inode, sizeBytes, mtimeNs, ctimeNs } = file;
    return `${hash('md5', [inode, sizeBytes, mtimeNs, ctimeNs].join(' '))}-0`;
  }
  const digits = record.md5.toString('hex');
  if (record.partCount === UNHASHED) return `${digits}-0`;
  return record.partCount === 0 ? digits : `${digits}-${record.partCount}`;
}

/** The content type that a file name implies. */
export function guessContentType(name: string): string {
  const type = lookup(extname(name));
  if (type === false) return 'application/octet-stream';
  return type.startsWith('text/') ? `${type}; charset=utf-8` : type;
}
