import { hash } from 'node:crypto';
import { join } from 'node:path';
import { EDGE_LIMITS } from '../../limits.ts';
import { digestMd5, readdir, syncFile } from '../../../disks/disk-calls.ts';
import type { DiskLayout } from '../../../disks/disk-layout.ts';
import { Checksum, type ChecksumKind } from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import { assemble } from './assemble.ts';
import { assertChecksum, checksumKind, checksumOfFile, joinChecksums } from './part-checksums.ts';
import { chooseParts, type ExpectedObject, pairOf, type PartRef } from './choose-parts.ts';
import { expireUploads, mayBeExpired } from './clear-uploads.ts';
import { statusOf } from './file-calls.ts';
import type { KeyLocks } from './key-locks.ts';
import { type ObjectPath, parseKey } from './keys.ts';
import { listUploads, type UploadListRequest, type UploadPage } from './list-uploads.ts';
import {
  checkAttributes,
  type ObjectInfo,
  type Precondition,
  type WriteAttributes,
} from './object-info.ts';
import { publish } from './publish.ts';
import { stageFile } from './staged-file.ts';
import { asS3 } from './store-errors.ts';
import {
  createUpload,
  findAnswer,
  finishUpload,
  keepPart,
  partName,
  readUpload,
  removeUpload,
  type StoredPart,
  storedParts,
  type Upload,
  writeAnswer,
} from './upload-files.ts';
import { isUploadId } from './upload-names.ts';
import { type VerifyDigests, writeBody } from './write-body.ts';

export interface PartPage {
  readonly parts: readonly Omit<StoredPart, 'name'>[];
  readonly isTruncated: boolean;
  readonly checksum: ChecksumKind | undefined;
}

/** How a part is taken from its body. */
export interface PartOptions {
  /** Computed over the body, unless the upload prescribes another one. */
  readonly checksum?: Checksum | undefined;
  /** Called with the digests of the whole body before the part is kept; throws to refuse it. */
  readonly verify?: VerifyDigests;
}

/** The lock of an upload's completion; no object has a path like this. */
const completionOf = (uploadId: string): string => `\0${uploadId}`;

/** Multipart uploads. Nothing of an object is visible before its upload is complete. */
export class MultipartUploads {
  readonly #disk: DiskLayout;
  readonly #locks: KeyLocks;
  /** How many requests complete an upload, by its id: one after the other. */
  readonly #completing = new Map<string, number>();
  /** Parts that are taking their places, by upload. */
  readonly #keeping = new Map<string, Set<Promise<void>>>();

  /** @param locks the disk's key locks, shared with everything else that publishes objects there */
  constructor(disk: DiskLayout, locks: KeyLocks) {
    this.#disk = disk;
    this.#locks = locks;
  }

  /** @throws S3Error `InvalidRequest` when too many uploads are under way on the disk */
  async create(key: string, attributes: WriteAttributes, checksum?: ChecksumKind): Promise<string> {
    if (parseKey(key).isDirectory) {
      throw new S3Error('InvalidArgument', 'A directory cannot have content.');
    }
    checkAttributes(attributes);
    return asS3(async () => {
      if ((await this.#count()) >= EDGE_LIMITS.uploadsPerDiskMax) {
        throw new S3Error(
          'InvalidRequest',
          `${EDGE_LIMITS.uploadsPerDiskMax} uploads are under way on this disk.`,
        );
      }
      return createUpload(this.#disk.uploads, { key, attributes, checksum });
    });
  }

  /** @throws S3Error `NoSuchUpload`, `InvalidArgument`, `OperationAborted`, `QuotaExceeded` */
  async putPart(
    uploadId: string,
    key: string,
    partNumber: number,
    body: AsyncIterable<Buffer>,
    { checksum: given, verify }: PartOptions = {},
  ): Promise<Pick<StoredPart, 'etag' | 'sizeBytes' | 'checksum'>> {
    if (
      !Number.isInteger(partNumber) ||
      partNumber < 1 ||
      partNumber > EDGE_LIMITS.partsPerUploadMax
    ) {
      throw new S3Error(
        'InvalidArgument',
        `Part numbers are 1 to ${EDGE_LIMITS.partsPerUploadMax}.`,
      );
    }
    const { uploads } = this.#disk;
    return asS3(async () => {
      const checksum = partChecksum(await readUpload(uploads, uploadId, key), given);
      await using staged = await stageFile(uploads);
      const md5 = digestMd5(await writeBody(staged.fd, body, checksum));
      const value = checksum?.digest();
      verify?.({ md5, checksum: value });
      await syncFile(staged.fd);
      const { sizeBytes } = statusOf(staged.fd);
      const kept = checksum && value && { algorithm: checksum.algorithm, value };
      const name = partName(partNumber, md5, sizeBytes, kept);
      await this.#locks.run(`${uploadId}/${partNumber}`, () =>
        this.#keep(uploadId, () => keepPart(uploads, uploadId, staged.path, name)),
      );
      return { etag: md5.toString('hex'), sizeBytes, ...(kept && { checksum: kept }) };
    });
  }

  /**
   * Creates the object from its parts; durable when it returns. A repetition with the same parts
   * gets the same answer, for an hour after it succeeded: one that comes sooner waits, since
   * clients repeat what they have waited for too long.
   * @param expected what the caller says about the object as a whole
   * @throws S3Error `NoSuchUpload`, `InvalidPart`, `InvalidPartOrder`, `EntityTooSmall`,
   *   `EntityTooLarge`, `OperationAborted`, `BadDigest`, `InvalidRequest` when the size or the kind
   *   of checksum is another one, and what the precondition throws
   */
  async complete(
    uploadId: string,
    key: string,
    parts: readonly PartRef[],
    precondition?: Precondition,
    expected: ExpectedObject = {},
  ): Promise<ObjectInfo> {
    const target = parseKey(key);
    const partsDigest = hash('sha256', JSON.stringify(parts.map(pairOf)));
    const attempt = async (): Promise<ObjectInfo> => {
      const { uploads } = this.#disk;
      const answer = await findAnswer(uploads, uploadId);
      if (answer?.key === key && answer.partsDigest === partsDigest) return answer.info;
      const upload = await readUpload(uploads, uploadId, key);
      const stored = await storedParts(uploads, uploadId, 0, EDGE_LIMITS.partsPerUploadMax);
      const chosen = chooseParts(stored, parts, expected);
      const work = { uploadId, upload, target, chosen, expected, partsDigest, precondition };
      return this.#complete(work);
    };
    return asS3(() => this.#inTurn(uploadId, attempt));
  }

  /** Completes an upload after others that have begun to; nobody changes it meanwhile. */
  async #inTurn<T>(uploadId: string, complete: () => Promise<T>): Promise<T> {
    this.#completing.set(uploadId, (this.#completing.get(uploadId) ?? 0) + 1);
    try {
      return await this.#locks.run(completionOf(uploadId), async () => {
        await Promise.allSettled([...(this.#keeping.get(uploadId) ?? [])]);
        return complete();
      });
    } finally {
      const left = (this.#completing.get(uploadId) ?? 1) - 1;
      if (left === 0) this.#completing.delete(uploadId);
      else this.#completing.set(uploadId, left);
    }
  }

  /**
   * Puts a part in its place. A completion that begins meanwhile waits, since it reads the parts.
   */
  async #keep(uploadId: string, work: () => Promise<void>): Promise<void> {
    this.#refuseWhileCompleting(uploadId);
    const keeping = this.#keeping.get(uploadId) ?? new Set();
    this.#keeping.set(uploadId, keeping);
    const kept = work();
    keeping.add(kept);
    try {
      await kept;
    } finally {
      keeping.delete(kept);
      if (keeping.size === 0) this.#keeping.delete(uploadId);
    }
  }

  /** @throws S3Error `NoSuchUpload`, `OperationAborted` */
  async abort(uploadId: string, key: string): Promise<void> {
    this.#refuseWhileCompleting(uploadId);
    await asS3(async () => {
      await readUpload(this.#disk.uploads, uploadId, key);
      await removeUpload(this.#disk.uploads, uploadId);
    });
  }

  /** @throws S3Error `NoSuchUpload` */
  async listParts(
    uploadId: string,
    key: string,
    { after, limit }: { after: number; limit: number },
  ): Promise<PartPage> {
    return asS3(async () => {
      const { uploads } = this.#disk;
      const { checksum } = await readUpload(uploads, uploadId, key);
      const stored = await storedParts(uploads, uploadId, after, EDGE_LIMITS.partsPerUploadMax);
      const parts = newestOfEach(stored);
      const isTruncated = parts.length > limit && limit > 0;
      return { parts: parts.slice(0, limit), isTruncated, checksum };
    });
  }

  /** Uploads under way, in the order of their keys and then of their creation. */
  list(request: UploadListRequest): Promise<UploadPage> {
    return asS3(() => listUploads(this.#disk.uploads, request));
  }

  /** Counts the uploads under way, and removes expired ones and expired answers. */
  async #count(): Promise<number> {
    const { uploads } = this.#disk;
    const names = await readdir(uploads);
    const count = names.filter(isUploadId).length;
    if (count < EDGE_LIMITS.uploadsPerDiskMax && !names.some(mayBeExpired)) return count;
    return expireUploads(uploads);
  }

  #refuseWhileCompleting(uploadId: string): void {
    if (!this.#completing.has(uploadId)) return;
    throw new S3Error('OperationAborted', 'The upload is being completed.');
  }

  async #complete(work: {
    uploadId: string;
    upload: Upload;
    target: ObjectPath;
    chosen: readonly StoredPart[];
    expected: ExpectedObject;
    partsDigest: string;
    precondition: Precondition | undefined;
  }): Promise<ObjectInfo> {
    const { uploadId, upload, target, chosen, expected, partsDigest, precondition } = work;
    const { contents, uploads } = this.#disk;
    const [first, ...others] = chosen;
    if (first === undefined) throw new S3Error('InvalidRequest', 'At least one part is required.');
    const md5s = Buffer.from(chosen.map(({ etag }) => etag).join(''), 'hex');
    const kind = checksumKind(upload.checksum, expected);
    const joined = kind && (await joinChecksums(kind, chosen));
    if (joined !== undefined) assertChecksum(joined, expected.checksum);
    const { key, attributes } = upload;
    await using staged = await assemble(join(uploads, uploadId), first, others);
    const checksum = joined ?? (kind && (await checksumOfFile(staged.fd, kind.algorithm)));
    if (joined === undefined && checksum !== undefined) assertChecksum(checksum, expected.checksum);
    const md5 = hash('md5', md5s, 'buffer');
    const digests = { md5, partCount: chosen.length, checksum };
    const info = await this.#locks.run(target.path, () =>
      publish(contents, target, {
        ...{ staged, digests, parts: chosen },
        attributes,
        precondition,
        // The answer is stored before the object appears: afterwards the part's file is gone.
        beforeRename: (future) =>
          writeAnswer(uploads, uploadId, { key, partsDigest, firstPart: first.name, info: future }),
      }),
    );
    await finishUpload(uploads, uploadId);
    return info;
  }
}

/** The checksum to compute for a part. @throws S3Error InvalidRequest when another one was given */
function partChecksum({ checksum }: Upload, given: Checksum | undefined): Checksum | undefined {
  if (checksum === undefined) return given;
  if (given === undefined) return new Checksum(checksum.algorithm);
  if (given.algorithm === checksum.algorithm) return given;
  throw new S3Error(
    'InvalidRequest',
    `The parts of this upload have ${checksum.algorithm} checksums.`,
  );
}

function newestOfEach(parts: readonly StoredPart[]): PartPage['parts'][number][] {
  const newest = new Map<number, StoredPart>();
  for (const part of parts) {
    const other = newest.get(part.partNumber);
    if (other === undefined || other.modifiedAt <= part.modifiedAt) {
      newest.set(part.partNumber, part);
    }
  }
  return [...newest.values()].map(({ name: _, ...part }) => part);
}
