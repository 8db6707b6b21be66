import { join } from 'node:path';
import { errnoOf, ignoring } from '../../../../shared/errors.ts';
import {
  closeFile,
  listDirectory,
  lstat,
  mkdir,
  openFile,
  readFile,
  rename,
  rm,
  syncFile,
  writeText,
} from '../../../disks/disk-calls.ts';
import { toItsEnd } from '../../../disks/disk-threads.ts';
import type { DirectoryPage } from '../../../native/native.ts';
import {
  CHECKSUM_ALGORITHMS,
  type ChecksumAlgorithm,
  type ChecksumKind,
} from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import { holdDirectory } from './held-directory.ts';
import type { ObjectInfo, WriteAttributes } from './object-info.ts';
import { RECORD_ATTRIBUTE } from './object-record.ts';
import { isAbsent } from './store-errors.ts';
import { doneName, isUploadId, newStagedName, newUploadId } from './upload-names.ts';
import { parseJson } from '../../../../shared/json.ts';

/*
 * The files of multipart uploads, in a disk's `uploads` (names: upload-names.ts). Only root
 * has access to them, so their content is trusted.
 */

export interface Upload {
  readonly key: string;
  readonly attributes: WriteAttributes;
  /** The checksum that its parts and its object get. */
  readonly checksum?: ChecksumKind | undefined;
}

/** The stored answer of a completed upload, for a caller that did not receive it. */
export interface CompletedUpload {
  readonly key: string;
  /** A digest of the list of parts that the caller sent. */
  readonly partsDigest: string;
  /** The file of the part that becomes the object; it is gone once the object exists. */
  readonly firstPart: string;
  readonly info: ObjectInfo;
}

export interface StoredPart {
  readonly name: string;
  readonly partNumber: number;
  /** MD5, hexadecimal. */
  readonly etag: string;
  readonly sizeBytes: number;
  readonly modifiedAt: Date;
  readonly checksum?: PartChecksum;
}

export interface PartChecksum {
  readonly algorithm: ChecksumAlgorithm;
  readonly value: Buffer;
}

const UPLOAD_FILE = 'upload.json';
const ANSWER_FILE = 'answer.json';
const PARTS_PER_SCAN = 1000;
const partPattern = /^part-(\d{5})-([0-9a-f]{32})-(\d+)(?:-([0-9a-z]+)-([0-9a-f]+))?$/u;

const partPrefix = (partNumber: number): string => `part-${String(partNumber).padStart(5, '0')}-`;

export function partName(
  partNumber: number,
  md5: Buffer,
  sizeBytes: number,
  checksum?: PartChecksum,
): string {
  const name = `${partPrefix(partNumber)}${md5.toString('hex')}-${sizeBytes}`;
  if (checksum === undefined) return name;
  return `${name}-${checksum.algorithm}-${checksum.value.toString('hex')}`;
}

/** Reads what the name of a part says; undefined when it is none. */
function parsePartName(name: string): Omit<StoredPart, 'modifiedAt'> | undefined {
  const [, digits, etag, bytes, algorithmName, value = ''] = partPattern.exec(name) ?? [];
  if (etag === undefined) return undefined;
  const part = { name, partNumber: Number(digits), etag, sizeBytes: Number(bytes) };
  const algorithm = CHECKSUM_ALGORITHMS.find((each) => each === algorithmName);
  if (algorithm === undefined) return part;
  return { ...part, checksum: { algorithm, value: Buffer.from(value, 'hex') } };
}

export async function createUpload(uploads: string, upload: Upload): Promise<string> {
  const uploadId = newUploadId();
  const staged = join(uploads, newStagedName());
  await mkdir(staged, { mode: 0o700 }).catch((error: unknown) => {
    throw errnoOf(error) === 'ENOENT' ? new S3Error('ServiceUnavailable') : error;
  });
  try {
    await writeSynced(join(staged, UPLOAD_FILE), upload);
    await rename(staged, join(uploads, uploadId));
  } catch (error) {
    await toItsEnd(() => rm(staged, { recursive: true, force: true }));
    throw error;
  }
  await syncDirectory(uploads, '');
  return uploadId;
}

/** @throws S3Error `NoSuchUpload`, also when the upload belongs to another key */
export async function readUpload(uploads: string, uploadId: string, key: string): Promise<Upload> {
  if (!isUploadId(uploadId)) throw new S3Error('NoSuchUpload');
  const upload = await findUpload(uploads, uploadId);
  if (upload?.key !== key) throw new S3Error('NoSuchUpload');
  return upload;
}

export async function findUpload(uploads: string, uploadId: string): Promise<Upload | undefined> {
  return readJson<Upload>(join(uploads, uploadId, UPLOAD_FILE));
}

/** Stores a written part and replaces one of the same number; durable when it returns. */
export async function keepPart(
  uploads: string,
  uploadId: string,
  staged: string,
  name: string,
): Promise<void> {
  const directory = join(uploads, uploadId);
  await rename(staged, join(directory, name)).catch((error: unknown) => {
    throw isAbsent(error) ? new S3Error('NoSuchUpload') : error;
  });
  const partNumber = Number(partPattern.exec(name)?.[1]);
  const stored = await storedParts(uploads, uploadId, partNumber - 1, partNumber);
  const replaced = stored.filter((part) => part.name !== name);
  // The answer of an interrupted completion must go first: once the file of its first part is gone,
  // finishUpload takes the object for created.
  if (replaced.length > 0) await rm(join(directory, ANSWER_FILE), { force: true });
  for (const part of replaced) await rm(join(directory, part.name), { force: true });
  await syncDirectory(uploads, uploadId);
}

/**
 * Lists the parts with numbers in (after, last], in order. A number can occur twice when a crash
 * interrupted a replacement.
 */
export async function storedParts(
  uploads: string,
  uploadId: string,
  after: number,
  last: number,
): Promise<StoredPart[]> {
  const parts: StoredPart[] = [];
  const prefix = Buffer.from('part-');
  for (let from: Buffer | undefined = Buffer.from(partPrefix(after + 1)); from !== undefined;) {
    const page: DirectoryPage = await listDirectory(
      uploads,
      uploadId,
      prefix,
      from,
      PARTS_PER_SCAN,
      RECORD_ATTRIBUTE,
    );
    for (const entry of page.entries) {
      const part = entry.isDirectory ? undefined : parsePartName(entry.name);
      if (entry.isDirectory || part === undefined) continue;
      if (part.partNumber > last) return parts;
      parts.push({ ...part, modifiedAt: new Date(Number(entry.mtimeNs / 1_000_000n)) });
    }
    from = page.after;
  }
  return parts;
}

export async function writeAnswer(
  uploads: string,
  uploadId: string,
  answer: CompletedUpload,
): Promise<void> {
  const path = join(uploads, uploadId, ANSWER_FILE);
  await rm(path, { force: true });
  await writeSynced(path, answer);
  await syncDirectory(uploads, uploadId);
}

/**
 * Stores the answer of an upload whose object exists, and removes the upload's files. Idempotent.
 * @returns false when the upload was not completed
 */
export async function finishUpload(uploads: string, uploadId: string): Promise<boolean> {
  const directory = join(uploads, uploadId);
  const answer = await readJson<CompletedUpload>(join(directory, ANSWER_FILE));
  if (answer === undefined) {
    if (!(await exists(join(uploads, doneName(uploadId))))) return false;
    await removeUpload(uploads, uploadId); // A crash interrupted the last two steps.
    return true;
  }
  // The file that was to become the object still exists: the completion was interrupted.
  if (await exists(join(directory, answer.firstPart))) return false;
  await rename(join(directory, ANSWER_FILE), join(uploads, doneName(uploadId)));
  await removeUpload(uploads, uploadId);
  return true;
}

export async function findAnswer(
  uploads: string,
  uploadId: string,
): Promise<CompletedUpload | undefined> {
  if (!isUploadId(uploadId)) return undefined;
  await finishUpload(uploads, uploadId);
  const answer = await readJson<CompletedUpload>(join(uploads, doneName(uploadId)));
  if (answer === undefined) return undefined;
  const modifiedAt = new Date(answer.info.modifiedAt);
  return { ...answer, info: { ...answer.info, modifiedAt } };
}

/** Removes an upload; it disappears in one step, even if this is interrupted. */
export async function removeUpload(uploads: string, name: string): Promise<void> {
  const doomed = join(uploads, newStagedName());
  await rename(join(uploads, name), doomed).catch(ignoring('ENOENT'));
  await rm(doomed, { recursive: true, force: true });
}

async function exists(path: string): Promise<boolean> {
  return (await lstat(path).catch(ignoring('ENOENT'))) !== undefined;
}

async function writeSynced(path: string, content: Upload | CompletedUpload): Promise<void> {
  const fd = await openFile(path, 'wx', 0o600);
  try {
    await writeText(fd, JSON.stringify(content));
    await syncFile(fd);
  } finally {
    await closeFile(fd);
  }
}

/** @returns undefined when there is no such file, or a crash left it unfinished */
async function readJson<T extends Upload | CompletedUpload>(path: string): Promise<T | undefined> {
  const text = await readFile(path, 'utf8').catch(ignoring('ENOENT', 'ENOTDIR'));
  if (text === undefined) return undefined;
  try {
    return parseJson(text) as T;
  } catch {
    return undefined;
  }
}

async function syncDirectory(root: string, path: string): Promise<void> {
  await using directory = await holdDirectory(root, path);
  await syncFile(directory.fd);
}
