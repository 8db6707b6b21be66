import { EDGE_LIMITS } from '../../limits.ts';
import { S3Error } from '../protocol/errors.ts';
import type { ObjectCall } from '../http/operation.ts';
import type { OpenObject } from '../store/object-info.ts';
import { type ObjectPart, readPartTable } from '../store/part-table.ts';

/**
 * The part of an object that `partNumber` selects. An object that was not uploaded in parts has
 * one.
 * @returns undefined when the request names no part
 * @throws S3Error InvalidArgument, InvalidPartNumber; InvalidRequest for a range of a part;
 *   NotImplemented when the sizes of the parts were not stored
 */
export async function readPart(
  { headers, target }: ObjectCall,
  file: OpenObject,
): Promise<ObjectPart | undefined> {
  const text = target.query.get('partNumber');
  if (text === undefined) return undefined;
  if (headers['range'] !== undefined) {
    throw new S3Error('InvalidRequest', 'Range and partNumber cannot be used together.');
  }
  const number = /^\d{1,5}$/u.test(text) ? Number(text) : 0;
  if (number < 1 || number > EDGE_LIMITS.partsPerUploadMax) {
    throw new S3Error(
      'InvalidArgument',
      `partNumber must be 1 to ${EDGE_LIMITS.partsPerUploadMax}.`,
    );
  }
  if (number > Math.max(1, file.partCount)) {
    throw new S3Error('InvalidPartNumber', `The object has ${Math.max(1, file.partCount)} parts.`);
  }
  if (file.partCount === 0) return { start: 0, sizeBytes: file.sizeBytes };
  const parts = await readPartTable(file.fd, file.etag);
  const part = parts?.[number - 1];
  if (part !== undefined && part.sizeBytes === 0) throw new S3Error('InvalidRange');
  if (part !== undefined) return part;
  throw new S3Error('NotImplemented', 'The sizes of the parts of this object were not stored.');
}
