import type { Readable } from 'node:stream';

/** A version of an object, from a listing or from an answer. */
export interface BucketObject {
  readonly key: string;
  readonly sizeBytes: number;
  /** Changes whenever the contents do; opaque. */
  readonly etag: string;
  /** MD5 of the contents in hex, where the storage reports it. */
  readonly md5?: string;
  readonly modifiedMs: number;
  /** The mark that {@link Bucket.put} or {@link Bucket.copy} gave it. Listings do not tell it. */
  readonly mark?: string;
}

/** The object that a write replaces, and the mark of the one that it makes. */
export interface WriteTerms {
  /** The object that is there now, as the caller knows it. Any other refuses the write. */
  readonly replaced?: BucketObject | undefined;
  /**
   * Kept with the object, by which a write whose answer was lost is known again (decision 0056).
   */
  readonly mark: string;
}

/** The contents of an upload; `open` is called again when an attempt is repeated. */
export interface UploadSource {
  readonly sizeBytes: number;
  /** Reads a part; the promise's buffer may be kept. */
  read(offset: number, length: number): Promise<Buffer>;
}

/** Object storage as a disk uses it. Every method throws {@link BucketError}. */
export interface Bucket {
  /** How long a key may be, below the mount's prefix. */
  readonly keyBytesMax: number;
  /** Finds out whether the bucket can be reached and listed. */
  check(signal: AbortSignal): Promise<void>;
  /** All objects below the mount's prefix, in pages; keys are relative to the prefix. */
  list(signal: AbortSignal): AsyncIterable<readonly BucketObject[]>;
  /** @returns undefined when there is no such object */
  head(key: string, signal: AbortSignal): Promise<BucketObject | undefined>;
  /** Opens an object, its bytes compared with the checksum that the storage has of them. */
  get(key: string, signal: AbortSignal): Promise<BucketObject & { readonly body: Readable }>;
  /**
   * Writes a whole object, in parts if it is large, each with a checksum.
   * Storage that can write on a condition fails with `changed` when something else is there than
   * what is replaced.
   */
  put(
    key: string,
    source: UploadSource,
    terms: WriteTerms,
    signal: AbortSignal,
  ): Promise<BucketObject>;
  /** Copies an object within the storage, unless it has another version by now. */
  copy(from: BucketObject, key: string, mark: string, signal: AbortSignal): Promise<BucketObject>;
  /** Removes this version of an object, where the storage can tell versions apart. Idempotent. */
  remove(object: BucketObject, signal: AbortSignal): Promise<void>;
  close(): void;
}

/**
 * The kind of a failure: the storage does not answer (`away`), is overloaded (`busy`), refuses the
 * credentials (`auth`), has no such bucket or object (`missing`), has another version of the object
 * (`changed`), does not know the request (`unsupported`), or answers with another error (`other`);
 * or it is the disk that cannot (`disk`): it is full, or too small for so many keys.
 */
type BucketFailure =
  | 'away'
  | 'busy'
  | 'auth'
  | 'missing'
  | 'changed'
  | 'unsupported'
  | 'other'
  | 'disk';

/** A failure of object storage, in words for the disk's owner. */
export class BucketError extends Error {
  readonly failure: BucketFailure;

  constructor(failure: BucketFailure, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'BucketError';
    this.failure = failure;
  }
}
