import { parseJson } from '../../../../shared/json.ts';
import { isHeaderName, isHeaderValue } from '../protocol/raw-headers.ts';

/*
 * The headers in the record of an object: for each a line `name:value`, the prefix of metadata as
 * one hyphen. Names and values contain no line feed; values have one character a byte. Records of
 * older versions have those characters in UTF-8, and still older ones have JSON.
 */

/** The prefix of the headers that are metadata of the caller's own. */
export const META = 'x-amz-meta-';

const STORED: ReadonlySet<string> = new Set([
  ...['cache-control', 'content-disposition', 'content-encoding', 'content-language', 'expires'],
]);

/** Whether a header is stored with an object and returned with it. @param name in lower case */
export const isStoredHeader = (name: string): boolean =>
  STORED.has(name) || (name.startsWith(META) && isHeaderName(name));

export function encodeHeaders(headers: Readonly<Record<string, string>>): Buffer {
  const lines = Object.entries(headers).map(([name, value]) => {
    const short = name.startsWith(META) ? `-${name.slice(META.length)}` : name;
    return `${short}:${value}`;
  });
  return Buffer.from(lines.join('\n'), 'latin1');
}

/**
 * Leaves out what is no stored header: earlier versions stored any name that a query gave.
 * @param encoding how the record has the characters
 */
export function decodeHeaders(bytes: Buffer, encoding: 'latin1' | 'utf8'): Record<string, string> {
  const found = decodeLines(bytes.toString(encoding));
  return Object.fromEntries(
    Object.entries(found).filter(([name, value]) => isStoredHeader(name) && isHeaderValue(value)),
  );
}

function decodeLines(text: string): Record<string, string> {
  if (text.startsWith('{')) return parseJson(text) as Record<string, string>;
  return Object.fromEntries(
    text.split('\n').map((line) => {
      const end = line.indexOf(':');
      const name = line.slice(0, end);
      return [name.startsWith('-') ? META + name.slice(1) : name, line.slice(end + 1)];
    }),
  );
}
