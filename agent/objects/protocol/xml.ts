const ENTITIES: Readonly<Record<string, string>> = { '&': '&amp;', '<': '&lt;', '>': '&gt;' };

// What XML 1.0 §2.2 has no character for, and CR, which every parser would turn into LF.
// oxlint-disable-next-line no-control-regex -- these are the characters to be replaced
const NOT_CARRIED = /[\u0000-\u0008\u000B-\u001F\uFFFE\uFFFF]/g;

/**
 * Text as element content. Only named entities: clients exist that do not decode numeric references
 * (`&#39;`). Quotes stay as they are: those of the ETags alone would be 2000 entities in a page
 * of a listing, and the parser of the public client refuses a document with more than 1000. A character that cannot be carried becomes U+FFFD, so that a key with it
 * is never mistaken for another key; listings with `encoding-type=url` show it exactly.
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

/** A successful answer: its root has the namespace of S3's own answers. */
export const renderAnswer = (name: string, content: XmlContent): string =>
  renderDocument(element(name, content, S3_NAMESPACE));
