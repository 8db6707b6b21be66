import { XMLParser } from 'fast-xml-parser';
import { toError } from '../../../shared/errors.ts';
import { LIMITS } from '../../../shared/limits.ts';
import type { DeleteConditions } from './delete-conditions.ts';
import { CHECKSUM_ALGORITHMS, checksumElementName, decodeChecksum } from '../protocol/checksum.ts';
import { S3Error } from '../protocol/errors.ts';
import type { PartRef } from '../store/choose-parts.ts';
import type { PartChecksum } from '../store/upload-files.ts';

// A Delete document has three levels; deeper ones are refused before they are parsed.
const NESTING_MAX = 8;
// 10,000 parts with seven fields each, and a margin. Parsing more would block the whole agent.
const TAGS_MAX = 200_000;

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

const malformed = (why: string, cause?: Error): S3Error =>
  new S3Error('MalformedXML', `The XML is not what the operation expects: ${why}.`, { cause });

const TEXT = '#text';
const CDATA = '#cdata';

const parser = new XMLParser({
  preserveOrder: true,
  textNodeName: TEXT,
  cdataPropName: CDATA,
  ignoreAttributes: true,
  ignoreDeclaration: true,
  ignorePiTags: true,
  removeNSPrefix: true,
  parseTagValue: false,
  trimValues: false,
  // Decoded below, once and exactly; the parser's own decoding has limits on how many there are.
  processEntities: false,
  maxNestedTags: NESTING_MAX,
});

const NAMED: ReadonlyMap<string, string> = new Map([
  ['amp', '&'],
  ['lt', '<'],
  ['gt', '>'],
  ['quot', '"'],
  ['apos', "'"],
]);

/**
 * References to control characters are accepted although XML 1.0 has none: a key may contain them,
 * and clients have no other way to say so.
 */
function decodeReference(reference: string, body: string): string {
  const named = NAMED.get(body);
  if (named !== undefined) return named;
  const digits = /^#(?:x([0-9A-Fa-f]{1,6})|([0-9]{1,7}))$/.exec(body);
  const [, hex, decimal] = digits ?? [];
  const code = hex === undefined ? Number(decimal ?? Number.NaN) : Number.parseInt(hex, 16);
  const isSurrogate = code >= 0xd800 && code <= 0xdfff;
  if (!(code > 0 && code <= 0x10ffff) || isSurrogate) throw malformed(`entity ${reference}`);
  return String.fromCodePoint(code);
}

const decodeEntities = (text: string): string =>
  text.replaceAll(/&([^;&]{0,16});?/g, (reference, body: string) => {
    if (!reference.endsWith(';')) throw malformed('an ampersand that is not escaped');
    return decodeReference(reference, body);
  });

/** An element as this module reads it: either text or child elements count, never both. */
interface Node {
  readonly name: string;
  readonly text: string;
  readonly children: readonly Node[];
}

type OrderedNode = Readonly<Record<string, unknown>>;

function readChildren(list: unknown): { text: string; children: Node[] } {
  const children: Node[] = [];
  let text = '';
  for (const item of list as OrderedNode[]) {
    const [name = ''] = Object.keys(item);
    if (name === TEXT) text += decodeEntities(item[TEXT] as string);
    else if (name === CDATA) text += (item[CDATA] as [{ [TEXT]: string }])[0][TEXT];
    else children.push({ name, ...readChildren(item[name]) });
  }
  return { text, children };
}

function assertFewTags(body: Buffer): void {
  let count = 0;
  for (let at = body.indexOf('<'); at !== -1; at = body.indexOf('<', at + 1)) {
    count += 1;
    if (count > TAGS_MAX) throw malformed('it has too many tags');
  }
}

/** @throws S3Error MalformedXML */
function parseRoot(body: Buffer, rootName: string): Node {
  assertFewTags(body);
  let text: string;
  let nodes: unknown;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(body);
    // Comments and CDATA are the only declarations that have a place in these documents.
    if (/<!(?!--|\[CDATA\[)/.test(text)) throw malformed('it has a document type or declaration');
    // XML reads CR as LF, which would make it another key: better to refuse than to delete that.
    if (CR_IN_KEY.test(text)) throw malformed('a key has a carriage return; write &#13;');
    nodes = parser.parse(text, true);
  } catch (error) {
    throw error instanceof S3Error ? error : malformed('it cannot be parsed', toError(error));
  }
  const { children } = readChildren(nodes);
  const [root] = children;
  if (root === undefined || children.length > 1 || root.name !== rootName) {
    throw malformed(`its root must be ${rootName}`);
  }
  return root;
}

/** The text of the one child of that name; undefined if there is none. */
function childText(node: Node, name: string): string | undefined {
  const found = node.children.filter((child) => child.name === name);
  const [child] = found;
  if (child === undefined) return undefined;
  if (found.length > 1) throw malformed(`${name} appears twice`);
  if (child.children.length > 0) throw malformed(`${name} must be text`);
  return child.text;
}

function requiredText(node: Node, name: string): string {
  const text = childText(node, name);
  if (text === undefined || text === '') throw malformed(`${node.name} needs ${name}`);
  return text;
}

/**
 * Refuses elements that would be ignored.
 * @throws S3Error NotImplemented
 */
function assertChildren(node: Node, names: readonly string[]): void {
  const unknown = node.children.find(({ name }) => !names.includes(name));
  if (unknown === undefined) return;
  throw new S3Error('NotImplemented', `${node.name} is not implemented with ${unknown.name}.`);
}

function itemsOf(root: Node, name: string, countMax: number): Node[] {
  const items = root.children.filter((child) => child.name === name);
  if (items.length === 0) throw malformed(`it has no ${name}`);
  if (items.length > countMax) throw malformed(`it has more than ${countMax} of ${name}`);
  return items;
}

function readDeletedObject(item: Node): DeletedObject {
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
 * Reads the body of DeleteObjects, with or without namespace. Keys are kept exactly, including white
 * space; the caller decides whether a key is valid.
 * @param body whose length the caller has bounded
 * @throws S3Error MalformedXML
 */
export function parseDelete(body: Buffer): DeleteRequest {
  const root = parseRoot(body, 'Delete');
  assertChildren(root, ['Object', 'Quiet']);
  const objects = itemsOf(root, 'Object', LIMITS.keysPerDeleteMax).map(readDeletedObject);
  const quiet = childText(root, 'Quiet')?.trim() ?? 'false';
  if (!/^(?:true|false)$/i.test(quiet)) throw malformed('Quiet must be true or false');
  return { objects, quiet: quiet.toLowerCase() === 'true' };
}

const checksumNames = CHECKSUM_ALGORITHMS.map(checksumElementName);

function readChecksums(item: Node): PartChecksum[] {
  return CHECKSUM_ALGORITHMS.flatMap((algorithm) => {
    const value = childText(item, checksumElementName(algorithm))?.trim();
    return value === undefined ? [] : [{ algorithm, value: decodeChecksum(algorithm, value) }];
  });
}

function readPart(item: Node): PartRef {
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
  return itemsOf(root, 'Part', LIMITS.partsPerUploadMax).map(readPart);
}
