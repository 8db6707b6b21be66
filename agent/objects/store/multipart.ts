import { hash } from 'node:crypto';
import { join } from 'node:path';
import { LIMITS } from '../../../shared/limits.ts';
import { digestMd5, readdir, syncFile } from '../../disks/disk-calls.ts';
import type { DiskLayout } from '../../disks/disk-layout.ts';
import { S3Error } from '../protocol/errors.ts';
import { assemble } from './assemble.ts';
import { expireUploads } from './clear-uploads.ts';
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
import { writeBody } from './write-body.ts';

const EXPIRE_EVERY_MS = 600_000;

/** A part as the caller lists it. */
export interface PartRef {
  readonly partNumber: number;
  /** Without quotes. */
  readonly etag: string;
}

interface PartInfo extends PartRef {
  readonly sizeBytes: number;
}

export interface PartPage {
  readonly parts: readonly (PartInfo & { readonly modifiedAt: Date })[];
  readonly isTruncated: boolean;
}

/** Multipart uploads. Nothing of an object is visible before its upload is complete. */
export class MultipartUploads {
  readonly #disk: DiskLayout;
  readonly #locks: KeyLocks;
  readonly #completing = new Set<string>();
  #expiredAt = performance.now();

  /** @param locks the disk's key locks, shared with everything else that publishes objects there */
  constructor(disk: DiskLayout, locks: KeyLocks) {
    this.#disk = disk;
    this.#locks = locks;
  }

  /** @throws S3Error `InvalidRequest` when too many uploads are under way on the disk */
  async create(key: string, attributes: WriteAttributes): Promise<string> {
    if (parseKey(key).isDirectory) {
      throw new S3Error('InvalidArgument', 'A directory cannot have content.');
    }
    checkAttributes(attributes);
    return asS3(async () => {
      if ((await this.#count()) >= LIMITS.uploadsPerDiskMax) {
        throw new S3Error(
          'InvalidRequest',
          `${LIMITS.uploadsPerDiskMax} uploads are under way on this disk.`,
        );
      }
      return createUpload(this.#disk.uploads, { key, attributes });
    });
  }

  /** @throws S3Error `NoSuchUpload`, `InvalidArgument`, `OperationAborted`, `QuotaExceeded` */
  async putPart(
    uploadId: string,
    key: string,
    partNumber: number,
    body: AsyncIterable<Buffer>,
    verify?: (md5: Buffer) => void | Promise<void>,
  ): Promise<{ etag: string; sizeBytes: number }> {
    if (!Number.isInteger(partNumber) || partNumber < 1 || partNumber > LIMITS.partsPerUploadMax) {
      throw new S3Error('InvalidArgument', `Part numbers are 1 to ${LIMITS.partsPerUploadMax}.`);
    }
    const { uploads } = this.#disk;
    return asS3(async () => {
      await readUpload(uploads, uploadId, key);
      await using staged = await stageFile(uploads);
      const md5 = digestMd5(await writeBody(staged.fd, body));
      await verify?.(md5);
      await syncFile(staged.fd);
      const { sizeBytes } = statusOf(staged.fd);
      const name = partName(partNumber, md5, sizeBytes);
      await this.#locks.run(`${uploadId}/${partNumber}`, async () => {
        this.#refuseWhileCompleting(uploadId);
        await keepPart(uploads, uploadId, staged.path, name);
      });
      return { etag: md5.toString('hex'), sizeBytes };
    });
  }

  /**
   * Creates the object from its parts; durable when it returns. For an hour after it succeeded, a
   * repetition with the same parts gets the same answer.
   * @throws S3Error `NoSuchUpload`, `InvalidPart`, `InvalidPartOrder`, `EntityTooSmall`,
   *   `EntityTooLarge`, `OperationAborted`, and what the precondition throws
   */
  async complete(
    uploadId: string,
    key: string,
    parts: readonly PartRef[],
    precondition?: Precondition,
  ): Promise<ObjectInfo> {
    const target = parseKey(key);
    this.#refuseWhileCompleting(uploadId);
    this.#completing.add(uploadId);
    try {
      return await asS3(async () => {
        const partsDigest = hash('sha256', JSON.stringify(parts.map(toPair)));
        const answer = await findAnswer(this.#disk.uploads, uploadId);
        if (answer?.key === key && answer.partsDigest === partsDigest) return answer.info;
        const upload = await readUpload(this.#disk.uploads, uploadId, key);
        const chosen = await this.#choose(uploadId, parts);
        return this.#complete({ uploadId, upload, target, chosen, partsDigest, precondition });
      });
    } finally {
      this.#completing.delete(uploadId);
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
      await readUpload(this.#disk.uploads, uploadId, key);
      const stored = await storedParts(
        this.#disk.uploads,
        uploadId,
        after,
        LIMITS.partsPerUploadMax,
      );
      const parts = newestOfEach(stored);
      return { parts: parts.slice(0, limit), isTruncated: parts.length > limit && limit > 0 };
    });
  }

  /** Uploads under way, in the order of their keys and then of their creation. */
  list(request: UploadListRequest): Promise<UploadPage> {
    return asS3(() => listUploads(this.#disk.uploads, request));
  }

  /** Counts the uploads under way, and removes expired ones from time to time. */
  async #count(): Promise<number> {
    const { uploads } = this.#disk;
    const count = (await readdir(uploads)).filter(isUploadId).length;
    if (count < LIMITS.uploadsPerDiskMax && performance.now() - this.#expiredAt < EXPIRE_EVERY_MS)
      return count;
    this.#expiredAt = performance.now();
    return expireUploads(uploads);
  }

  #refuseWhileCompleting(uploadId: string): void {
    if (!this.#completing.has(uploadId)) return;
    throw new S3Error('OperationAborted', 'The upload is being completed.');
  }

  /** Finds the stored parts that the caller lists. */
  async #choose(uploadId: string, parts: readonly PartRef[]): Promise<StoredPart[]> {
    const stored = new Map<string, StoredPart>();
    for (const part of await storedParts(
      this.#disk.uploads,
      uploadId,
      0,
      LIMITS.partsPerUploadMax,
    )) {
      stored.set(toPair(part).join(), part);
    }
    return checkParts(
      parts,
      parts.map((part) => stored.get(toPair(part).join())),
    );
  }

  async #complete(work: {
    uploadId: string;
    upload: Upload;
    target: ObjectPath;
    chosen: readonly StoredPart[];
    partsDigest: string;
    precondition: Precondition | undefined;
  }): Promise<ObjectInfo> {
    const { uploadId, upload, target, chosen, partsDigest, precondition } = work;
    const { contents, uploads } = this.#disk;
    const [first, ...others] = chosen;
    if (first === undefined) throw new S3Error('InvalidRequest', 'At least one part is required.');
    const md5s = Buffer.from(chosen.map(({ etag }) => etag).join(''), 'hex');
    const etag = { md5: hash('md5', md5s, 'buffer'), partCount: chosen.length };
    const { key, attributes } = upload;
    await using staged = await assemble(join(uploads, uploadId), first, others);
    const info = await this.#locks.run(target.path, () =>
      publish(contents, target, {
        staged,
        etag,
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

const toPair = ({ partNumber, etag }: PartRef): [number, string] => [partNumber, etag];

/** @throws S3Error when the listed parts cannot be joined (docs/object-api.md, Errors) */
function checkParts(
  wanted: readonly PartRef[],
  found: readonly (StoredPart | undefined)[],
): StoredPart[] {
  let before = 0;
  for (const { partNumber } of wanted) {
    if (partNumber <= before) throw new S3Error('InvalidPartOrder');
    before = partNumber;
  }
  const parts = found.filter((part) => part !== undefined);
  if (parts.length < found.length) throw new S3Error('InvalidPart');
  if (parts.slice(0, -1).some(({ sizeBytes }) => sizeBytes < LIMITS.partBytesMin)) {
    throw new S3Error('EntityTooSmall');
  }
  const sizeBytes = parts.reduce((sum, part) => sum + part.sizeBytes, 0);
  if (sizeBytes > LIMITS.objectBytesMax) throw new S3Error('EntityTooLarge');
  return parts;
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
