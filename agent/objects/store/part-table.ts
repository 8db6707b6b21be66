import { errnoOf } from '../../../shared/errors.ts';
import { parseJson } from '../../../shared/json.ts';
import { getAttribute, setAttribute } from '../../disks/disk-calls.ts';
import type { ChecksumAlgorithm } from '../protocol/checksum.ts';
import type { StoredPart } from './upload-files.ts';

/*
 * The sizes of a multipart object's parts, and their checksums if there is space, in an extended
 * attribute of its file beside the record. All attributes of a file share one block, so this one is
 * short: the sizes are stored as runs of equal ones, and of an object whose parts have very many
 * different sizes nothing is stored (docs/decisions/0044).
 */
const PARTS_ATTRIBUTE = 'trusted.berth.parts';
const TABLE_BYTES_MAX = 1024;

interface StoredTable {
  /** Of the object that the table describes. */
  readonly etag: string;
  readonly runs: readonly (readonly [sizeBytes: number, count: number])[];
  readonly algorithm?: ChecksumAlgorithm;
  /** Base64. */
  readonly checksums?: readonly string[];
}

export interface ObjectPart {
  readonly start: number;
  readonly sizeBytes: number;
  readonly checksum?: { readonly algorithm: ChecksumAlgorithm; readonly value: string };
}

function runsOf(parts: readonly StoredPart[]): [number, number][] {
  const runs: [number, number][] = [];
  for (const { sizeBytes } of parts) {
    const last = runs.at(-1);
    if (last?.[0] === sizeBytes) last[1] += 1;
    else runs.push([sizeBytes, 1]);
  }
  return runs;
}

/** Stores the table in an open file. Readers do without one that does not fit. */
export async function storePartTable(
  fd: number,
  etag: string,
  parts: readonly StoredPart[],
): Promise<void> {
  const plain: StoredTable = { etag, runs: runsOf(parts) };
  const checksums = parts.flatMap(({ checksum }) => checksum?.value.toString('base64') ?? []);
  const algorithm = parts[0]?.checksum?.algorithm;
  const isWhole = algorithm !== undefined && checksums.length === parts.length;
  const tables = isWhole ? [{ ...plain, algorithm, checksums }, plain] : [plain];
  for (const table of tables) {
    const bytes = Buffer.from(JSON.stringify(table));
    if (bytes.length <= TABLE_BYTES_MAX && (await isStored(fd, bytes))) return;
  }
}

async function isStored(fd: number, bytes: Buffer): Promise<boolean> {
  try {
    await setAttribute(fd, PARTS_ATTRIBUTE, bytes);
    return true;
  } catch (error) {
    if (errnoOf(error) === 'ENOSPC') return false; // In the block of the attributes.
    throw error;
  }
}

/** @returns undefined when nothing is known about the parts of the object with this ETag */
export async function readPartTable(fd: number, etag: string): Promise<ObjectPart[] | undefined> {
  const bytes = await getAttribute(fd, PARTS_ATTRIBUTE);
  if (bytes === undefined) return undefined;
  const { algorithm, checksums, runs, ...table } = parseJson(bytes.toString()) as StoredTable;
  if (table.etag !== etag) return undefined;
  const parts: ObjectPart[] = [];
  let start = 0;
  for (const [sizeBytes, count] of runs) {
    for (let index = 0; index < count; index += 1) {
      const value = checksums?.[parts.length];
      const checksum = algorithm && value !== undefined ? { algorithm, value } : undefined;
      parts.push({ start, sizeBytes, ...(checksum === undefined ? {} : { checksum }) });
      start += sizeBytes;
    }
  }
  return parts;
}
