import { toError } from '../../../../shared/errors.ts';
import { EDGE_LIMITS } from '../../limits.ts';
import type { DeleteConditions } from './delete-conditions.ts';
import { CHECKSUM_ALGORITHMS, checksumElementName, decodeChecksum } from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import { malformed, readXml, type XmlNode } from '../protocol/read-xml.ts';
import type { PartRef } from '../store/choose-parts.ts';
import type { PartChecksum } from '../store/upload-files.ts';

/** An object that DeleteObjects names. */
export interface DeletedObject {
  readonly key: string;
  readonly versionId: string | undefined;
  readonly conditions: DeleteConditions;
}

/** The body of DeleteObjects. */
export interface DeleteRequest {
  readonly objects: readonly DeletedObject[];
  readonly quiet: boolean;
}

// Begins at each `<` and ends before the next, so the time is linear in the length.
const CR_IN_KEY = /<(?:[\w.-]+:)?Key(?:\s[^<>]*)?>[^<]*\r/;

/** @throws S3Error MalformedXML */
function parseRoot(body: Buffer, rootName: string): XmlNode {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(body);
  } catch (error) {
    throw malformed('it is not UTF-8', toError(error));
  }
  // XML reads CR as LF, which would make it another key: better to refuse than to delete that.
  if (CR_IN_KEY.test(text)) throw malformed('a key has a carriage return; write &#13;');
  const root = readXml(text);
  if (root.name !== rootName) throw malformed(`its root must be ${rootName}`);
  return root;
}

/** The text of the one child of that name; undefined if there is none. */
function childText(node: XmlNode, name: string): string | undefined {
  const found = node.children.filter((child) => child.name === name);
  const [child] = found;
  if (child === undefined) return undefined;
  if (found.length > 1) throw malformed(`${name} appears twice`);
  if (child.children.length > 0) throw malformed(`${name} must be text`);
  return child.text;
}

function requiredText(node: XmlNode, name: string): string {
  const text = childText(node, name);
  if (text === undefined || text === '') throw malformed(`${node.name} needs ${name}`);
  return text;
}

/**
 * Refuses elements that would be ignored.
 * @throws S3Error NotImplemented
 */
function assertChildren(node: XmlNode, names: readonly string[]): void {
  const unknown = node.children.find(({ name }) => !names.includes(name));
  if (unknown === undefined) return;
  throw new S3Error('NotImplemented', `${node.name} is not implemented with ${unknown.name}.`);
}

function itemsOf(root: XmlNode, name: string, countMax: number): XmlNode[] {
  const items = root.children.filter((child) => child.name === name);
  if (items.length === 0) throw malformed(`it has no ${name}`);
  if (items.length > countMax) throw malformed(`it has more than ${countMax} of ${name}`);
  return items;
}

function readDeletedObject(item: XmlNode): DeletedObject {
  assertChildren(item, ['Key', 'VersionId', 'ETag', 'LastModifiedTime', 'Size']);
  return {
    key: requiredText(item, 'Key'),
    versionId: childText(item, 'VersionId')?.trim(),
    conditions: {
      etag: childText(item, 'ETag')?.trim(),
      lastModified: childText(item, 'LastModifiedTime')?.trim(),
      sizeBytes: childText(item, 'Size')?.trim(),
    },
  };
}

/**
 * Reads the body of DeleteObjects, with or without namespace. Keys are kept exactly, including
 * white space; the caller decides whether a key is valid.
 * @param body whose length the caller has bounded
 * @throws S3Error MalformedXML
 */
export function parseDelete(body: Buffer): DeleteRequest {
  const root = parseRoot(body, 'Delete');
  assertChildren(root, ['Object', 'Quiet']);
  const objects = itemsOf(root, 'Object', EDGE_LIMITS.keysPerDeleteMax).map(readDeletedObject);
  const quiet = childText(root, 'Quiet')?.trim() ?? 'false';
  if (!/^(?:true|false)$/i.test(quiet)) throw malformed('Quiet must be true or false');
  return { objects, quiet: quiet.toLowerCase() === 'true' };
}

const checksumNames = CHECKSUM_ALGORITHMS.map(checksumElementName);

function readChecksums(item: XmlNode): PartChecksum[] {
  return CHECKSUM_ALGORITHMS.flatMap((algorithm) => {
    const value = childText(item, checksumElementName(algorithm))?.trim();
    return value === undefined ? [] : [{ algorithm, value: decodeChecksum(algorithm, value) }];
  });
}

function readPart(item: XmlNode): PartRef {
  assertChildren(item, ['PartNumber', 'ETag', ...checksumNames]);
  const number = requiredText(item, 'PartNumber').trim();
  const etag = requiredText(item, 'ETag').trim();
  if (!/^[0-9]{1,9}$/.test(number)) throw malformed('PartNumber must be a number');
  return {
    partNumber: Number(number),
    etag: etag.replace(/^"(.*)"$/s, '$1'),
    checksums: readChecksums(item),
  };
}

/**
 * Reads the body of CompleteMultipartUpload, in the order of the document. The caller checks order,
 * range, existence and checksums of the parts.
 * @param body whose length the caller has bounded
 * @throws S3Error MalformedXML
 */
export function parseCompleteMultipartUpload(body: Buffer): PartRef[] {
  const root = parseRoot(body, 'CompleteMultipartUpload');
  assertChildren(root, ['Part']);
  return itemsOf(root, 'Part', EDGE_LIMITS.partsPerUploadMax).map(readPart);
}
