import { errnoOf } from '../../../../shared/errors.ts';
import { parseJson } from '../../../../shared/json.ts';
import { KiB } from '../../../../shared/units.ts';
import { getAttribute, setAttribute } from '../../../disks/disk-calls.ts';
import type { ChecksumAlgorithm } from '../protocol/checksum.ts';
import type { StoredPart } from './upload-files.ts';

/*
 * The sizes of a multipart object's parts, and their checksums if there is space, in an extended
 * attribute of its file beside the record, so that they end with the file (docs/decisions/0013). A
 * head in JSON ends with a line feed; the sizes follow as runs of equal ones, each a size and a
 * count, as numbers of 7 bits per byte, the lowest first, with the highest bit set in all bytes but
 * the last. So 10,000 parts of 10,000 sizes take at most 60 KB of the 64 KiB that an attribute may
 * have.
 */
const PARTS_ATTRIBUTE = 'trusted.berth.parts';
const TABLE_BYTES_MAX = 64 * KiB;

interface TableHead {
  /** ETag of the object that the table describes. */
  readonly etag: string;
  readonly algorithm?: ChecksumAlgorithm;
  /** Base64. */
  readonly checksums?: readonly string[];
}

export interface ObjectPart {
  readonly start: number;
  readonly sizeBytes: number;
  readonly checksum?: { readonly algorithm: ChecksumAlgorithm; readonly value: string };
}

const LINE_FEED = 0x0a;

function encodeRuns(parts: readonly StoredPart[]): Buffer {
  const bytes: number[] = [];
  const push = (number: number): void => {
    let rest = number;
    for (; rest > 0x7f; rest = Math.floor(rest / 0x80)) bytes.push((rest % 0x80) | 0x80);
    bytes.push(rest);
  };
  for (let from = 0; from < parts.length;) {
    const sizeBytes = parts[from]?.sizeBytes ?? 0;
    let end = from + 1;
    while (parts[end]?.sizeBytes === sizeBytes) end += 1;
    push(sizeBytes);
    push(end - from);
    from = end;
  }
  return Buffer.from(bytes);
}

function* decodeRuns(bytes: Buffer): Generator<[sizeBytes: number, count: number]> {
  let sizeBytes: number | undefined;
  let number = 0;
  let factor = 1;
  for (const byte of bytes) {
    number += (byte & 0x7f) * factor;
    factor *= 0x80;
    if (byte > 0x7f) continue;
    if (sizeBytes !== undefined) yield [sizeBytes, number];
    sizeBytes = sizeBytes === undefined ? number : undefined;
    number = 0;
    factor = 1;
  }
}

/** Stores the table in an open file. Readers do without one that does not fit. */
export async function storePartTable(
  fd: number,
  etag: string,
  parts: readonly StoredPart[],
): Promise<void> {
  const plain: TableHead = { etag };
  const checksums = parts.flatMap(({ checksum }) => checksum?.value.toString('base64') ?? []);
  const algorithm = parts[0]?.checksum?.algorithm;
  const isWhole = algorithm !== undefined && checksums.length === parts.length;
  const runs = encodeRuns(parts);
  for (const head of isWhole ? [{ ...plain, algorithm, checksums }, plain] : [plain]) {
    const bytes = Buffer.concat([Buffer.from(`${JSON.stringify(head)}\n`), runs]);
    if (bytes.length <= TABLE_BYTES_MAX && (await isStored(fd, bytes))) return;
  }
}

async function isStored(fd: number, bytes: Buffer): Promise<boolean> {
  try {
    await setAttribute(fd, PARTS_ATTRIBUTE, bytes);
    return true;
  } catch (error) {
    // Disks of earlier versions have one block for all attributes of a file.
    if (errnoOf(error) === 'ENOSPC') return false;
    throw error;
  }
}

/** @returns undefined when nothing is known about the parts of the object with this ETag */
export async function readPartTable(fd: number, etag: string): Promise<ObjectPart[] | undefined> {
  const bytes = await getAttribute(fd, PARTS_ATTRIBUTE);
  if (bytes === undefined) return undefined;
  const end = bytes.indexOf(LINE_FEED);
  const head = parseJson(bytes.toString('utf8', 0, end)) as TableHead;
  if (head.etag !== etag) return undefined;
  const { algorithm, checksums } = head;
  const parts: ObjectPart[] = [];
  let start = 0;
  for (const [sizeBytes, count] of decodeRuns(bytes.subarray(end + 1))) {
    for (let index = 0; index < count; index += 1) {
      const value = checksums?.[parts.length];
      const checksum = algorithm && value !== undefined ? { algorithm, value } : undefined;
      parts.push({ start, sizeBytes, ...(checksum === undefined ? {} : { checksum }) });
      start += sizeBytes;
    }
  }
  return parts;
}
