import { randomBytes, randomUUID } from 'node:crypto';

/*
 * The names in a disk's `uploads`:
 *   put-<uuid>     an object or a part being written, or an upload being created or removed;
 *                  leftovers when the disk is attached
 *   append-<uuid>-…  a second link to a file while it is appended to; see append-intent.ts
 *   <upload id>/   a multipart upload: `upload.json` and
 *                  `part-<number>-<md5>-<bytes>[-<checksum algorithm>-<checksum>]`
 *   done-<upload id>   the answer of an upload that was completed
 * An upload id is the time of its creation in ms, eleven hexadecimal digits, and 128 random bits.
 */
const uploadIdPattern = /^([0-9a-f]{11})-[0-9a-f]{32}$/u;
const DONE_PREFIX = 'done-';

export const newStagedName = (): string => `put-${randomUUID()}`;

export const isStagedName = (name: string): boolean => name.startsWith('put-');

export const newUploadId = (): string =>
  `${Date.now().toString(16).padStart(11, '0')}-${randomBytes(16).toString('hex')}`;

export const isUploadId = (name: string): boolean => uploadIdPattern.test(name);

export const initiatedAtOf = (uploadId: string): Date =>
  new Date(Number.parseInt(uploadIdPattern.exec(uploadId)?.[1] ?? '', 16));

export const doneName = (uploadId: string): string => `${DONE_PREFIX}${uploadId}`;

export const isDoneName = (name: string): boolean => name.startsWith(DONE_PREFIX);

/** The upload whose answer has this name. */
export const uploadIdOf = (answerName: string): string => answerName.slice(DONE_PREFIX.length);
