import type { DiskEntry } from '../../../shared/directory/disk-record.ts';
import type { BodyPart } from './file-response.ts';
import type { RequestBody } from './request-body.ts';
import type { ObjectHeaders } from './request-headers.ts';
import type { OpenObject } from '../store/object-info.ts';
import type { ObjectStore } from '../store/object-store.ts';
import type { ObjectTarget } from './target.ts';

/** An admitted request, with everything that an operation on the bucket's disk needs. */
export interface ObjectCall {
  readonly headers: ObjectHeaders['values'];
  readonly target: ObjectTarget;
  readonly disk: DiskEntry;
  readonly store: ObjectStore;
  readonly body: RequestBody;
  /**
   * The store of a disk that the same principal reaches and this host handles; open until the
   * call ends.
   * @throws S3Error NoSuchBucket, AccessDenied, NotImplemented when another host handles it
   */
  readonly openStore: (bucket: string) => Promise<ObjectStore>;
}

export interface S3Reply {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly xml?: string;
  /** Sent and then closed. */
  readonly object?: { readonly file: OpenObject; readonly parts: readonly BodyPart[] };
}

export type Operation = (call: ObjectCall) => Promise<S3Reply>;

/** A header's value as Node joins repeated ones. */
export const header = ({ headers }: ObjectCall, name: string): string | undefined => headers[name];

export const quoted = (etag: string): string => `"${etag}"`;
