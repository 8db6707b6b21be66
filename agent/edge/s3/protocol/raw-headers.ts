/**
 * Whether a header, or a query parameter that stands for one, is of S3 or of this server, whose own
 * ones have two names.
 */
export const isObjectHeader = (name: string): boolean => /^x-(?:amz|archil|service)-/iu.test(name);

/** Names and values by turns, as in Node's `rawHeaders`: order and duplicates are kept. */
export type RawHeaders = readonly string[];

const NAME = /^[\w!#$%&'*+.^`|~-]+$/u;
const VALUE = /^[\t\u0020-\u007e\u0080-\u00ff]*$/u;

/**
 * A text as Node delivers it in a header: one character for each byte of its UTF-8, without blanks
 * around it (RFC 9110, section 5.5).
 */
export const toHeaderValue = (text: string): string =>
  Buffer.from(text.replaceAll(/^[\t ]+|[\t ]+$/gu, '')).toString('latin1');

/** Whether a text can be the name of a header (RFC 9110, section 5.1). */
export const isHeaderName = (text: string): boolean => NAME.test(text);

/** Whether a text, one character a byte, can be the value of a header (RFC 9110, section 5.5). */
export const isHeaderValue = (text: string): boolean => VALUE.test(text);

/** All values of a header in their order. @param name in lower case */
export function headerValues(headers: RawHeaders, name: string): string[] {
  const values: string[] = [];
  for (let index = 0; index + 1 < headers.length; index += 2) {
    if (headers[index]?.toLowerCase() === name) values.push(headers[index + 1] ?? '');
  }
  return values;
}

/** The values of a header joined as RFC 9110 §5.3 allows, or undefined. @param name lower case */
export function headerValue(headers: RawHeaders, name: string): string | undefined {
  const values = headerValues(headers, name);
  return values.length === 0 ? undefined : values.join(',');
}

/** The names of all headers, in lower case. */
export const headerNames = (headers: RawHeaders): string[] =>
  headers.filter((_text, index) => index % 2 === 0).map((name) => name.toLowerCase());
