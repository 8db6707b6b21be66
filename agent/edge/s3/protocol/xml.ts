const ENTITIES: Readonly<Record<string, string>> = { '&': '&amp;', '<': '&lt;', '>': '&gt;' };

// Characters that XML 1.0 §2.2 excludes, and CR, which parsers turn into LF.
// oxlint-disable-next-line no-control-regex -- these are the characters to be replaced
const NOT_CARRIED = /[\u0000-\u0008\u000B-\u001F\uFFFE\uFFFF]/g;

/**
 * Escapes text as element content. Only named entities are used, since some clients do not decode
 * numeric references. Quotes are not escaped: the ETags of a listing page alone would need 2000
 * entities, and the public client's parser refuses a document with more than 1000. A character that
 * XML cannot carry becomes U+FFFD, so that its key is not mistaken for another key; listings with
 * `encoding-type=url` show such keys exactly.
 */
function escapeText(text: string): string {
  return text
    .toWellFormed()
    .replace(NOT_CARRIED, '\uFFFD')
    .replace(/[&<>]/g, (character) => ENTITIES[character] ?? character);
}

/** A rendered element; made by `element` only, so that nothing unescaped gets into a document. */
export interface XmlElement {
  readonly markup: string;
}

type XmlContent = string | number | boolean | readonly (XmlElement | undefined)[];

const S3_NAMESPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"';

/** An element with text or with child elements; undefined children are left out. */
export function element(name: string, content: XmlContent, attributes = ''): XmlElement {
  const inner =
    typeof content === 'object'
      ? content.map((child) => child?.markup ?? '').join('')
      : escapeText(String(content));
  return { markup: `<${name}${attributes}>${inner}</${name}>` };
}

/** A whole document in UTF-8. */
export const renderDocument = (root: XmlElement): string =>
  `<?xml version="1.0" encoding="UTF-8"?>\n${root.markup}\n`;

/** A successful answer: its root element has the namespace of S3's own answers. */
export const renderAnswer = (name: string, content: XmlContent): string =>
  renderDocument(element(name, content, S3_NAMESPACE));
