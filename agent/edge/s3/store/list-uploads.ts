import { readdir } from '../../../disks/disk-calls.ts';
import type { ChecksumKind } from '../protocol/checksum.ts';
import { compareKeys, groupOfKey } from './keys.ts';
import { findUpload } from './upload-files.ts';
import { initiatedAtOf, isUploadId } from './upload-names.ts';

export interface UploadListRequest {
  readonly prefix: string;
  readonly delimiter?: string | undefined;
  /** Only uploads of keys after this one … */
  readonly keyMarker: string;
  /** … and those of this very key with a later id than this one. */
  readonly uploadIdMarker: string;
  readonly limit: number;
}

interface ListedUpload {
  readonly key: string;
  readonly uploadId: string;
  readonly initiatedAt: Date;
  readonly checksum?: ChecksumKind | undefined;
}

export interface UploadPage {
  readonly uploads: readonly ListedUpload[];
  readonly commonPrefixes: readonly string[];
  readonly isTruncated: boolean;
  /**
   * The markers of the next page: an upload, or a common prefix without an id. Empty: no entries.
   */
  readonly nextKeyMarker: string;
  readonly nextUploadIdMarker: string;
}

const READS_AT_ONCE = 32;

/** Reads the keys of all uploads of the disk, whose number is bounded. */
export async function listUploads(
  directory: string,
  request: UploadListRequest,
): Promise<UploadPage> {
  const uploads: ListedUpload[] = [];
  const commonPrefixes: string[] = [];
  let next = { nextKeyMarker: '', nextUploadIdMarker: '' };
  for (const upload of await readUploads(directory)) {
    if (!upload.key.startsWith(request.prefix)) continue;
    const group = groupOf(upload.key, request);
    if (!isAfterMarkers(upload, group, request)) continue;
    if (group !== undefined && commonPrefixes.at(-1) === group) continue;
    if (uploads.length + commonPrefixes.length === request.limit) {
      return { uploads, commonPrefixes, isTruncated: request.limit > 0, ...next };
    }
    if (group === undefined) uploads.push(upload);
    else commonPrefixes.push(group);
    const nextUploadIdMarker = group === undefined ? upload.uploadId : '';
    next = { nextKeyMarker: group ?? upload.key, nextUploadIdMarker };
  }
  return { uploads, commonPrefixes, isTruncated: false, ...next };
}

function groupOf(key: string, { prefix, delimiter }: UploadListRequest): string | undefined {
  return groupOfKey(key, prefix, delimiter);
}

function isAfterMarkers(
  { key, uploadId }: ListedUpload,
  group: string | undefined,
  { keyMarker, uploadIdMarker }: UploadListRequest,
): boolean {
  if (group !== undefined && keyMarker === group) return false; // The previous page ended with it.
  const order = compareKeys(key, keyMarker);
  return order === 0 ? uploadIdMarker !== '' && uploadId > uploadIdMarker : order > 0;
}

async function readUploads(directory: string): Promise<ListedUpload[]> {
  const ids = (await readdir(directory)).filter(isUploadId);
  const found: ListedUpload[] = [];
  for (let start = 0; start < ids.length; start += READS_AT_ONCE) {
    const batch = ids.slice(start, start + READS_AT_ONCE).map(async (uploadId) => {
      const upload = await findUpload(directory, uploadId);
      if (upload === undefined) return; // The upload was just completed or aborted.
      const { key, checksum } = upload;
      found.push({ key, uploadId, initiatedAt: initiatedAtOf(uploadId), checksum });
    });
    await Promise.all(batch);
  }
  return found.toSorted((a, b) => compareKeys(a.key, b.key) || (a.uploadId < b.uploadId ? -1 : 1));
}
