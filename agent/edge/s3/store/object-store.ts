import {
  addToMd5,
  digestMd5,
  lstat,
  newMd5,
  rmdir,
  syncFile,
  unlink,
  writeChunks,
} from '../../../disks/disk-calls.ts';
import { ignoring } from '../../../../shared/errors.ts';
import type { DiskLayout } from '../../../disks/disk-layout.ts';
import { type Checksum, fullChecksum } from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import { appendToFile } from './append.ts';
import {
  DIRECTORY_MODE_DEFAULT,
  holdDirectory,
  holdMadeDirectory,
  makeDirectoryIn,
} from './held-directory.ts';
import { KeyLocks } from './key-locks.ts';
import { markAsKey, unmarkAsKey } from './directory-key.ts';
import { type ObjectPath, parseKey, parseReadKey, readKey } from './keys.ts';
import { listGrouped } from './list-grouped.ts';
import { listObjects, type ListRequest, type ObjectPage } from './list-objects.ts';
import { MultipartUploads } from './multipart.ts';
import {
  checkAttributes,
  findObject,
  headObject,
  newRecord,
  type ObjectInfo,
  openObject,
  type OpenObject,
  type ReadObject,
  readOrOpenObject,
  type Precondition,
  type WriteAttributes,
} from './object-info.ts';
import { publish } from './publish.ts';
import { stageFile } from './staged-file.ts';
import { asS3, isAbsent } from './store-errors.ts';
import { type VerifyDigests, writeBody } from './write-body.ts';

export interface PutOptions {
  readonly attributes: WriteAttributes;
  /** Called just before the object appears, with the one that it replaces. */
  readonly precondition?: Precondition | undefined;
  /** Taken of the body and stored with the object. */
  readonly checksum?: Checksum | undefined;
  /** Called with the digests of the whole body before the object appears; throws to refuse it. */
  readonly verify?: VerifyDigests;
}

/**
 * The objects of one mounted disk, which are its files (docs/decisions/0013). There must be only
 * one per disk, since it serializes changes of a key. Methods throw S3Error for failures that the
 * caller or the disk causes.
 */
export class ObjectStore {
  readonly #disk: DiskLayout;
  readonly #locks = new KeyLocks();
  readonly uploads: MultipartUploads;

  constructor(disk: DiskLayout) {
    this.#disk = disk;
    this.uploads = new MultipartUploads(disk, this.#locks);
  }

  /** @throws S3Error `NoSuchKey` */
  async head(key: string): Promise<ObjectInfo> {
    const target = readKey(key);
    return asS3(() => headObject(this.#disk.contents, target));
  }

  /** @throws S3Error `NoSuchKey` */
  async open(key: string): Promise<OpenObject> {
    const target = readKey(key);
    return asS3(() => openObject(this.#disk.contents, target));
  }

  /**
   * Reads an object when it is small, and otherwise opens it; see readOrOpenObject.
   * @throws S3Error `NoSuchKey`
   */
  async readOrOpen(key: string, contentMax: number): Promise<ReadObject | OpenObject> {
    const target = readKey(key);
    return asS3(() => readOrOpenObject(this.#disk.contents, target, contentMax));
  }

  /**
   * Writes a whole object; durable when it returns. A key that ends in a slash creates a
   * directory.
   * @param body whose chunks the store takes over: the caller must not use them again
   * @throws S3Error `OperationAborted`, `QuotaExceeded`, and what the options throw
   */
  async put(key: string, body: AsyncIterable<Buffer>, options: PutOptions): Promise<ObjectInfo> {
    const target = parseKey(key);
    checkAttributes(options.attributes);
    if (target.isDirectory) return this.#putDirectory(target, body, options);
    return asS3(async () => {
      await using staged = await stageFile(this.#disk.uploads);
      const { checksum, verify, attributes, precondition } = options;
      const md5 = digestMd5(await writeBody(staged.fd, body, checksum));
      const digest = checksum?.digest();
      verify?.({ md5, checksum: digest });
      const kept = checksum && digest && fullChecksum(checksum.algorithm, digest);
      const digests = { md5, partCount: 0, checksum: kept };
      const publication = { staged, digests, attributes, precondition };
      return await this.#locks.run(target.path, () =>
        publish(this.#disk.contents, target, publication),
      );
    });
  }

  /**
   * Appends to an object, or creates it; the attributes apply to a new one only.
   * @throws S3Error as `put`
   */
  async append(key: string, body: Buffer, attributes: WriteAttributes): Promise<ObjectInfo> {
    const target = parseKey(key);
    checkAttributes(attributes);
    if (target.isDirectory)
      throw new S3Error('InvalidArgument', 'A directory cannot have content.');
    return asS3(() =>
      this.#locks.run(target.path, async () => {
        const appended = await appendToFile(this.#disk, target, body);
        if (appended !== undefined) return appended;
        await using staged = await stageFile(this.#disk.uploads);
        await writeChunks(staged.fd, 0, [body]);
        const md5 = newMd5();
        await addToMd5(md5, [body]);
        const digests = { md5: digestMd5(md5), partCount: 0 };
        return await publish(this.#disk.contents, target, { staged, digests, attributes });
      }),
    );
  }

  /**
   * Removes a file, a link, or an empty directory; durable when it returns. Idempotent.
   * @throws S3Error what the precondition throws
   */
  async delete(key: string, precondition?: Precondition): Promise<void> {
    const target = parseReadKey(key);
    if (target === undefined) return precondition?.(undefined);
    await asS3(() =>
      this.#locks.run(target.path, async () => {
        precondition?.(await findObject(this.#disk.contents, target));
        await this.#delete(target);
      }),
    );
  }

  /** A page of keys in the order of their bytes. */
  list(request: ListRequest): Promise<ObjectPage> {
    return asS3(() =>
      request.delimiter === undefined || request.delimiter === '/'
        ? listObjects(this.#disk.contents, request)
        : listGrouped(this.#disk.contents, request),
    );
  }

  async #putDirectory(
    target: ObjectPath,
    body: AsyncIterable<Buffer>,
    { attributes, precondition, checksum, verify }: PutOptions,
  ): Promise<ObjectInfo> {
    for await (const chunk of body) {
      if (chunk.length > 0)
        throw new S3Error('InvalidArgument', 'A directory cannot have content.');
    }
    const md5 = digestMd5(newMd5());
    const digest = checksum?.digest();
    verify?.({ md5, checksum: digest });
    const kept = checksum && digest && fullChecksum(checksum.algorithm, digest);
    const record = newRecord({ md5, partCount: 0, checksum: kept }, attributes, target);
    const { uid = 0, gid = 0, mode = DIRECTORY_MODE_DEFAULT } = attributes;
    const { contents } = this.#disk;
    return asS3(() =>
      this.#locks.run(target.path, async () => {
        precondition?.(await findObject(contents, target));
        await using parent = await holdMadeDirectory(contents, target.parent, { uid, gid });
        await makeDirectoryIn(parent, target.name, { uid, gid, mode });
        await markAsKey(contents, target.path, record);
        const made = await findObject(contents, target);
        if (made !== undefined) return made;
        throw new S3Error(
          'OperationAborted',
          'The name belongs to something that is not a directory.',
        );
      }),
    );
  }

  async #delete({ path, parent: parentPath, name, isDirectory }: ObjectPath): Promise<void> {
    let parent;
    try {
      parent = await holdDirectory(this.#disk.contents, parentPath);
    } catch (error) {
      if (isAbsent(error)) return;
      throw error;
    }
    await using _ = parent;
    const place = parent.at(name);
    if (isDirectory) {
      await unmarkAsKey(this.#disk.contents, path);
      await rmdir(place).catch(ignoring('ENOENT', 'ENOTEMPTY', 'EEXIST', 'ENOTDIR'));
    } else {
      const found = await lstat(place).catch(ignoring('ENOENT'));
      if (found?.isFile() !== true && found?.isSymbolicLink() !== true) return;
      await unlink(place).catch(ignoring('ENOENT', 'EISDIR'));
    }
    await syncFile(parent.fd);
  }
}
