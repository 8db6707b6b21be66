import assert from 'node:assert';
import { constants } from 'node:fs';
import { closeReadFile, getAttribute } from '../../../disks/disk-calls.ts';
import type { ObjectChecksum } from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import { decodeKey, KEY_ATTRIBUTE } from './directory-key.ts';
import { type Attributes, type FileStatus, statusOf } from './file-calls.ts';
import type { ObjectPath } from './keys.ts';
import {
  decodeRecord,
  EMPTY_ETAG,
  etagOf,
  guessContentType,
  type ObjectRecord,
  RECORD_ATTRIBUTE,
  UNHASHED,
} from './object-record.ts';
import { type OpenedObject, openWithStatus } from './opened-object.ts';
import { settledStatus } from './settled-file.ts';
import { isAbsent } from './store-errors.ts';

export interface ObjectInfo extends Attributes {
  readonly sizeBytes: number;
  /** Without quotes. */
  readonly etag: string;
  readonly modifiedAt: Date;
  readonly contentType: string;
  /** Other headers that were stored with it; names in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  readonly isDirectory: boolean;
  /** Parts of a multipart object that was not changed since; otherwise 0. */
  readonly partCount: number;
  readonly checksum?: ObjectChecksum | undefined;
}

/** An open object: it keeps its content even if another one replaces it. */
export interface OpenObject extends ObjectInfo {
  /** A descriptor to read from; do not read a directory's. */
  readonly fd: number;
  readonly close: () => Promise<void>;
}

/** A small object that was read whole. */
export interface ReadObject extends ObjectInfo {
  readonly content: Buffer;
}

/** The attributes that a caller may give a new object. */
export interface WriteAttributes extends Partial<Attributes> {
  readonly contentType?: string;
  /** Headers to store with the object; names in lower case; the caller bounds their size. */
  readonly headers?: Readonly<Record<string, string>>;
}

/** Throws an S3Error to refuse changing the present object. */
export type Precondition = (present: ObjectInfo | undefined) => void;

/** 255 bytes that can stand in a header (RFC 9110 §5.5). */
const contentTypePattern = /^[\t\u0020-\u007E]{0,255}$/u;

/** @throws S3Error `InvalidArgument` */
export function checkAttributes({ contentType = '' }: WriteAttributes): void {
  if (!contentTypePattern.test(contentType)) {
    throw new S3Error(
      'InvalidArgument',
      'The content type is too long or not a valid header value.',
    );
  }
}

/** @throws S3Error `NoSuchKey` */
export async function openObject(contents: string, target: ObjectPath): Promise<OpenObject> {
  const opened = await openTarget(contents, target, 0);
  assert('fd' in opened); // Nothing was to be read.
  return describeOpen(opened, target);
}

/**
 * Reads an object when it is small, and otherwise opens it. An object that was changed just now is
 * opened too: another change of it might not show in its status.
 * @param contentMax the most bytes of a small object
 * @throws S3Error `NoSuchKey`
 */
export async function readOrOpenObject(
  contents: string,
  target: ObjectPath,
  contentMax: number,
): Promise<ReadObject | OpenObject> {
  const opened = await openTarget(contents, target, contentMax);
  if ('fd' in opened) return describeOpen(opened, target);
  const { status, attribute, content } = opened;
  return { ...infoOf(status, attribute, target), content };
}

/** The attribute that has the record of an object. */
const attributeOf = ({ isDirectory }: ObjectPath): string =>
  isDirectory ? KEY_ATTRIBUTE : RECORD_ATTRIBUTE;

async function openTarget(
  contents: string,
  target: ObjectPath,
  contentMax: number,
): Promise<OpenedObject> {
  const { path, isDirectory } = target;
  const flags = constants.O_RDONLY | (isDirectory ? constants.O_DIRECTORY : 0);
  try {
    return await openWithStatus(contents, path, flags, attributeOf(target), contentMax);
  } catch (error) {
    throw isAbsent(error) ? new S3Error('NoSuchKey') : error;
  }
}

async function describeOpen(
  { fd, status, attribute }: Extract<OpenedObject, { fd: number }>,
  target: ObjectPath,
): Promise<OpenObject> {
  try {
    const settled = await settledStatus(fd, status, attribute);
    return { ...infoOf(settled, attribute, target), fd, close: () => closeReadFile(fd) };
  } catch (error) {
    await closeReadFile(fd);
    throw error;
  }
}

/** @throws S3Error `NoSuchKey` */
export async function headObject(contents: string, target: ObjectPath): Promise<ObjectInfo> {
  const { fd: _, close, ...info } = await openObject(contents, target);
  await close();
  return info;
}

/** Opens what is there; undefined when nothing is. */
export async function findObject(
  contents: string,
  target: ObjectPath,
): Promise<ObjectInfo | undefined> {
  try {
    return await headObject(contents, target);
  } catch (error) {
    if (error instanceof S3Error && error.code === 'NoSuchKey') return undefined;
    throw error;
  }
}

/** Describes an open file as the object of this name. */
export async function describe(fd: number, target: ObjectPath): Promise<ObjectInfo> {
  const attribute = await getAttribute(fd, attributeOf(target));
  return infoOf(statusOf(fd), attribute, target);
}

/** The content type of an object that was stored without one. */
const impliedType = ({ name, isDirectory }: ObjectPath): string =>
  isDirectory ? 'application/x-directory' : guessContentType(name);

function infoOf(status: FileStatus, attribute: Buffer | undefined, target: ObjectPath): ObjectInfo {
  const { isDirectory } = target;
  const { mode, uid, gid, modifiedAt } = status;
  const record = isDirectory ? decodeKey(attribute) : decodeRecord(attribute, status);
  const parts = record?.partCount ?? 0;
  return {
    ...{ mode, uid, gid, modifiedAt, isDirectory },
    sizeBytes: isDirectory ? 0 : status.sizeBytes,
    etag: isDirectory ? EMPTY_ETAG : etagOf(record, status),
    contentType: record?.contentType ?? impliedType(target),
    headers: record?.headers ?? {},
    partCount: parts === UNHASHED ? 0 : parts,
    ...(record?.checksum === undefined ? {} : { checksum: record.checksum }),
  };
}

/** Builds an object's record; a content type that its key implies is left out. */
export function newRecord(
  digests: Pick<ObjectRecord, 'md5' | 'partCount' | 'checksum'>,
  { contentType, headers = {} }: WriteAttributes,
  target: ObjectPath,
): ObjectRecord {
  const isKept = contentType !== undefined && contentType !== impliedType(target);
  return {
    ...digests,
    contentType: isKept && contentType !== '' ? contentType : undefined,
    headers,
  };
}
