import { S3Error } from './errors.ts';

/*
 * Reads the documents of the S3 API: elements and text. Namespaces, attributes, comments and
 * processing instructions mean nothing in them. Decision 0013 says why no library does it.
 */

/** An element as callers read it: either text or child elements count, never both. */
export interface XmlNode {
  /** Without a prefix. */
  readonly name: string;
  readonly text: string;
  readonly children: readonly XmlNode[];
}

export const malformed = (why: string, cause?: Error): S3Error =>
  new S3Error('MalformedXML', `The XML is not what the operation expects: ${why}.`, { cause });

// A Delete document has three levels.
const NESTING_MAX = 8;
// 10,000 parts with seven fields each, and a margin.
const TAGS_MAX = 200_000;

const NAMED: ReadonlyMap<string, string> = new Map([
  ['amp', '&'],
  ['lt', '<'],
  ['gt', '>'],
  ['quot', '"'],
  ['apos', "'"],
]);
const REFERENCE_LENGTH_MAX = 16;

/**
 * References to control characters are accepted although XML 1.0 has none: a key may contain them,
 * and clients have no other way to say so.
 */
function decodeReference(body: string): string {
  const named = NAMED.get(body);
  if (named !== undefined) return named;
  const digits = /^#(?:x([0-9A-Fa-f]{1,6})|([0-9]{1,7}))$/.exec(body);
  const [, hex, decimal] = digits ?? [];
  const code = hex === undefined ? Number(decimal ?? Number.NaN) : Number.parseInt(hex, 16);
  const isSurrogate = code >= 0xd800 && code <= 0xdfff;
  if (!(code > 0 && code <= 0x10ffff) || isSurrogate) throw malformed(`entity &${body};`);
  return String.fromCodePoint(code);
}

function decodeEntities(text: string): string {
  let decoded = '';
  let from = 0;
  for (let at = text.indexOf('&'); at !== -1; at = text.indexOf('&', from)) {
    const end = at + 1 + text.slice(at + 1, at + 2 + REFERENCE_LENGTH_MAX).indexOf(';');
    if (end === at) throw malformed('an ampersand that is not escaped');
    decoded += text.slice(from, at) + decodeReference(text.slice(at + 1, end));
    from = end + 1;
  }
  return from === 0 ? text : decoded + text.slice(from);
}

// White space of XML 1.0, production 3.
const BLANK = /^[ \t\r\n]*$/;

// A tag from its `<` on; sticky, so that it is looked for nowhere else. No part of it can be read
// in two ways, so the time is linear.
const TAG =
  /<(\/?)(?:[^\s<>/="'&!?:]+:)?([^\s<>/="'&!?:]+)((?:\s+[^\s<>/="'&]+\s*=\s*(?:"[^"<]*"|'[^'<]*'))*)\s*(\/?)>/y;

interface OpenNode {
  readonly name: string;
  text: string;
  readonly children: XmlNode[];
}

/** Where what begins at `at` with `begin` ends; the text after it begins there. */
function endOf(text: string, at: number, begin: string, end: string): number {
  const found = text.indexOf(end, at + begin.length);
  if (found === -1) throw malformed(`${begin} without ${end}`);
  return found + end.length;
}

/** Builds the tree of elements as their tags come. */
class Tree {
  readonly root: OpenNode = { name: '', text: '', children: [] };
  readonly #open: OpenNode[] = [this.root];
  #tags = 0;

  get isWhole(): boolean {
    return this.#open.length === 1;
  }

  addText(text: string): void {
    const node = this.#open.at(-1);
    if (node !== undefined) node.text += text;
  }

  /** @returns where the tag ends */
  readTag(text: string, at: number): number {
    this.#tags += 1;
    if (this.#tags > TAGS_MAX) throw malformed('it has too many tags');
    TAG.lastIndex = at;
    const [, slash, name = '', attributes, isEmpty] = TAG.exec(text) ?? [];
    if (slash === undefined) throw malformed('a tag that is not closed');
    const end = TAG.lastIndex;
    if (slash === '/') {
      if (attributes !== '' || isEmpty !== '') throw malformed('an end tag with attributes');
      this.#close(name);
    } else {
      const node: OpenNode = { name, text: '', children: [] };
      this.#open.at(-1)?.children.push(node);
      if (isEmpty === '') this.#open.push(node);
      if (this.#open.length > NESTING_MAX + 1) throw malformed('it is nested too deeply');
    }
    return end;
  }

  #close(name: string): void {
    const node = this.isWhole ? undefined : this.#open.pop();
    if (node?.name !== name) throw malformed(`an end tag of ${name}`);
    if (node.children.length > 0 && !BLANK.test(node.text))
      throw malformed(`text beside the elements of ${name}`);
  }
}

/**
 * Reads a document.
 * @returns the root element
 * @throws S3Error MalformedXML
 */
export function readXml(text: string): XmlNode {
  const tree = new Tree();
  for (let at = 0; at < text.length;) {
    const tag = text.indexOf('<', at);
    const end = tag === -1 ? text.length : tag;
    if (end > at) tree.addText(decodeEntities(text.slice(at, end)));
    if (tag === -1) break;
    if (text.startsWith('<!--', tag)) at = endOf(text, tag, '<!--', '-->');
    else if (text.startsWith('<?', tag)) at = endOf(text, tag, '<?', '?>');
    else if (text.startsWith('<![CDATA[', tag)) {
      at = endOf(text, tag, '<![CDATA[', ']]>');
      tree.addText(text.slice(tag + '<![CDATA['.length, at - ']]>'.length));
    } else at = tree.readTag(text, tag);
  }
  const [root, ...others] = tree.root.children;
  if (!tree.isWhole || root === undefined || others.length > 0 || !BLANK.test(tree.root.text))
    throw malformed('it must have one root element');
  return root;
}
