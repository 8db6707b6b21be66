import type { Directory } from '../../../shared/directory/directory.ts';
import type { DiskEntry } from '../../../shared/directory/disk-record.ts';
import { AppError } from '../../../shared/errors.ts';
import { assertOwner } from './auth/principal.ts';
import type { SourceObject, SourceRequest } from './http/operation.ts';
import { readObject } from './http/read-object.ts';
import type { ObjectHeaders } from './http/request-headers.ts';
import { S3Error } from './protocol/errors.ts';
import type { RemoteObjects } from './remote-objects.ts';
import { readKey } from './store/keys.ts';
import type { ObjectStore } from './store/object-store.ts';

export interface CopySourcesOptions {
  readonly hostId: string;
  readonly directory: Directory;
  readonly remote: RemoteObjects;
}

/** The headers of a copy. */
interface Copy {
  /** The disk that is copied to. */
  readonly disk: DiskEntry;
  readonly store: ObjectStore;
  readonly headers: ObjectHeaders;
  /** Closes what is opened when the request ends. */
  readonly opened: AsyncDisposableStack;
  readonly signal: AbortSignal;
  /** Opens a disk of this host until the request ends. */
  readonly open: (disk: DiskEntry) => Promise<ObjectStore>;
  /** The disk of a bucket, if the caller may read it. */
  readonly authorize: (bucket: string) => Promise<DiskEntry>;
}

const movedAway = (error: unknown): boolean =>
  error instanceof AppError && error.code === 'disk_moved';

/** Opens the sources of copies, on this host or on the one that handles their disk. */
export class CopySources {
  readonly #options: CopySourcesOptions;

  constructor(options: CopySourcesOptions) {
    this.#options = options;
  }

  /** @throws S3Error as `ObjectCall.openSource` */
  async open(source: SourceRequest, copy: Copy): Promise<SourceObject> {
    const { disk, store } = copy;
    const isOwn = source.bucket === disk.record.id;
    const from = isOwn ? disk : await copy.authorize(source.bucket);
    assertOwner(from, copy.headers.values['x-amz-source-expected-bucket-owner']);
    if (isOwn) return this.#openIn(store, source, copy);
    try {
      return await this.#openAt(from.leaseHolder, from, source, copy);
    } catch (error) {
      if (!movedAway(error)) throw error;
      const moved = await this.#options.directory.disks.get(from.record.accountId, from.record.id);
      return await this.#openAt(moved?.leaseHolder, from, source, copy);
    }
  }

  async #openAt(
    leaseHolder: string | undefined,
    from: DiskEntry,
    source: SourceRequest,
    copy: Copy,
  ): Promise<SourceObject> {
    const isHere = leaseHolder === undefined || leaseHolder === this.#options.hostId;
    if (!isHere) return this.#openThere(leaseHolder, from, source, copy);
    return this.#openIn(await copy.open(from), source, copy);
  }

  async #openIn(
    store: ObjectStore,
    { key }: SourceRequest,
    { opened }: Copy,
  ): Promise<SourceObject> {
    const { close, fd, ...info } = await store.open(key);
    opened.defer(close);
    return { info, read: (range) => readObject({ fd }, range) };
  }

  async #openThere(
    hostId: string,
    { record }: DiskEntry,
    { key, range }: SourceRequest,
    { opened, signal }: Copy,
  ): Promise<SourceObject> {
    readKey(key); // No host is asked for what is no key.
    const { directory, remote } = this.#options;
    const baseUrl = await directory.hosts.find(hostId);
    if (baseUrl === undefined) {
      throw new S3Error(
        'ServiceUnavailable',
        'The host that has the source cannot be reached now.',
      );
    }
    const { accountId, id: diskId } = record;
    const at = { hostId, baseUrl, accountId, diskId };
    return opened.use(await remote.open({ ...at, key, range, signal }));
  }
}
