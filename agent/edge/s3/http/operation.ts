import type { DiskEntry } from '../../../../shared/directory/disk-record.ts';
import type { BodyPart } from './file-response.ts';
import type { PostForm, PostPolicy } from '../auth/post-policy.ts';
import type { RequestBody } from './request-body.ts';
import type { ObjectHeaders } from './request-headers.ts';
import type { ByteRange } from '../protocol/byte-ranges.ts';
import type { ObjectInfo, OpenObject, ReadObject } from '../store/object-info.ts';
import type { ObjectStore } from '../store/object-store.ts';
import type { ObjectTarget } from './target.ts';

/** How many keys a request deleted, and for how many of those it named that failed. */
export interface DeletedKeys {
  keys: number;
  failedKeys: number;
}

/** An admitted request, with everything that an operation on the bucket's disk needs. */
export interface ObjectCall {
  readonly headers: ObjectHeaders['values'];
  readonly target: ObjectTarget;
  readonly disk: DiskEntry;
  readonly store: ObjectStore;
  readonly body: RequestBody;
  /** Counts of deleted keys, for the account's activity. */
  readonly deleted: DeletedKeys;
  /** The form of PostObject. */
  readonly form?: PostForm | undefined;
  /** The policy under which the form was signed, if it was. */
  readonly policy?: PostPolicy | undefined;
  /**
   * An object that the same principal may read, on whichever host; open until the call ends.
   * @throws S3Error NoSuchBucket, AccessDenied, NoSuchKey, ServiceUnavailable
   */
  readonly openSource: (source: SourceRequest) => Promise<SourceObject>;
}

export interface SourceRequest {
  readonly bucket: string;
  readonly key: string;
  /** The only bytes that will be read, as a Range header names them. */
  readonly range?: string | undefined;
}

/** The source of a copy. */
export interface SourceObject {
  readonly info: ObjectInfo;
  /**
   * Reads a range of it, both ends included; an end before the start means no bytes. Call it once.
   * @throws S3Error OperationAborted, ServiceUnavailable when the source cannot be read to its end
   */
  readonly read: (range: ByteRange) => AsyncIterable<Buffer>;
}

export interface S3Reply {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly xml?: string;
  /** Sent, and then closed if it is open. */
  readonly object?: {
    readonly file: ReadObject | OpenObject;
    readonly parts: readonly BodyPart[];
  };
}

export type Operation = (call: ObjectCall) => Promise<S3Reply>;

/** A header's value as Node joins repeated ones. */
export const header = (
  { headers }: Pick<ObjectCall, 'headers'>,
  name: string,
): string | undefined => headers[name];

export const quoted = (etag: string): string => `"${etag}"`;
