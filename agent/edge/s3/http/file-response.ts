import { createHash, randomUUID } from 'node:crypto';
import type { BigIntStats } from 'node:fs';
import { type ByteRange, parseRanges } from '../protocol/byte-ranges.ts';
import { allowsRange, checkPreconditions, type RequestHeaders } from '../protocol/preconditions.ts';

/** The facts about a file that an HTTP answer needs. */
export interface FileFacts {
  readonly sizeBytes: number;
  readonly etag: string;
  readonly modifiedAt: Date;
  readonly contentType: string;
}

/** A piece of a body: text of our own, one character a byte, or bytes of the file. */
export type BodyPart = string | ByteRange;

export interface FileResponse {
  readonly status: 200 | 206 | 304 | 412 | 416;
  readonly headers: Readonly<Record<string, string>>;
  /** Empty for HEAD and for answers without the file. */
  readonly body: readonly BodyPart[];
}

export interface FileResponseOptions {
  readonly now?: Date;
  /** Whether a HEAD with Range is answered like its GET, as S3 does. */
  readonly rangeOfHead?: boolean;
  /** Answers with this range alone, whatever Range says. */
  readonly part?: ByteRange | undefined;
}

const ETAG_HEX_DIGITS = 32;

type Stats = Pick<BigIntStats, 'ino' | 'size' | 'mtimeNs' | 'ctimeNs' | 'mtime'>;

/** Changes whenever the content does: each write advances ctime, which nobody can set back. */
export function factsOf(stats: Stats, contentType: string): FileFacts {
  const { ino, size, mtimeNs, ctimeNs, mtime } = stats;
  const hash = createHash('sha256').update([ino, size, mtimeNs, ctimeNs].join(' ')).digest('hex');
  const etag = `"${hash.slice(0, ETAG_HEX_DIGITS)}"`;
  return { sizeBytes: Number(size), etag, modifiedAt: mtime, contentType };
}

const contentRange = ({ start, end }: ByteRange, size: number): string =>
  `bytes ${start}-${end}/${size}`;

const lengthOf = (part: BodyPart): number =>
  typeof part === 'string' ? part.length : part.end - part.start + 1;

/** RFC 9110, section 14.6. */
function multipartBody(
  ranges: readonly ByteRange[],
  { sizeBytes, contentType }: FileFacts,
  boundary: string,
): BodyPart[] {
  const parts = ranges.flatMap((range): BodyPart[] => [
    `--${boundary}\r\nContent-Type: ${contentType}\r\n` +
      `Content-Range: ${contentRange(range, sizeBytes)}\r\n\r\n`,
    range,
    '\r\n',
  ]);
  return [...parts, `--${boundary}--\r\n`];
}

/**
 * The answer to a GET or HEAD of a file: preconditions first, then the range (RFC 9110, sections
 * 13.2.2 and 14). Range applies to GET only, unless the options say otherwise. Pure except for the
 * random boundary of a multipart answer.
 */
export function respondWithFile(
  file: FileFacts,
  method: 'GET' | 'HEAD',
  headers: RequestHeaders,
  { now = new Date(), rangeOfHead = false, part }: FileResponseOptions = {},
): FileResponse {
  const { sizeBytes, etag, contentType } = file;
  // Section 8.8.2.1: a date in the future must not be sent, whatever the file's mtime is.
  const modifiedAt = file.modifiedAt > now ? now : file.modifiedAt;
  const validators = { etag, 'last-modified': modifiedAt.toUTCString() };
  const verdict = checkPreconditions(headers, { etag, modifiedAt });
  if (verdict === 'not_modified') return { status: 304, headers: validators, body: [] };
  if (verdict === 'failed') return { status: 412, headers: validators, body: [] };

  const common = { ...validators, 'accept-ranges': 'bytes' };
  const isRanged = method === 'GET' || rangeOfHead;
  const asked = isRanged && allowsRange(headers['if-range'], { etag, modifiedAt }, now);
  const wanted = asked ? parseRanges(headers['range'] ?? '', sizeBytes) : undefined;
  const ranges = part === undefined ? wanted : [part];
  if (ranges === undefined) {
    const whole = sizeBytes === 0 ? [] : [{ start: 0, end: sizeBytes - 1 }];
    return {
      status: 200,
      headers: { ...common, 'content-type': contentType, 'content-length': String(sizeBytes) },
      body: method === 'GET' ? whole : [],
    };
  }
  const [first, ...others] = ranges;
  if (first === undefined) {
    return {
      status: 416,
      headers: { ...common, 'content-range': `bytes */${sizeBytes}` },
      body: [],
    };
  }
  const boundary = randomUUID();
  const isMultipart = others.length > 0;
  const body = isMultipart ? multipartBody(ranges, file, boundary) : [first];
  return {
    status: 206,
    headers: {
      ...common,
      'content-length': String(body.reduce((sum, piece) => sum + lengthOf(piece), 0)),
      ...(isMultipart
        ? { 'content-type': `multipart/byteranges; boundary=${boundary}` }
        : { 'content-type': contentType, 'content-range': contentRange(first, sizeBytes) }),
    },
    body: method === 'GET' ? body : [],
  };
}
