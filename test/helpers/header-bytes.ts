/*
 * Values of headers, one character a byte: those that HTTP allows, those that it does not, and
 * those of which an encoder that cuts characters to their low byte makes line breaks.
 */

const range = (from: number, to: number): number[] =>
  Array.from({ length: to - from + 1 }, (_, at) => from + at);

const isControl = (code: number): boolean => (code < 0x20 && code !== 0x09) || code === 0x7f;

/** Bytes that no header value has (RFC 9110, section 5.5). */
export const FORBIDDEN: readonly string[] = range(0x01, 0xff)
  .filter(isControl)
  .map((code) => String.fromCodePoint(code));

/** All other bytes in one value, which neither begins nor ends with a blank. */
export const ALLOWED = `a${String.fromCodePoint(...range(0x01, 0xff).filter((code) => !isControl(code)))}`;

/** UTF-8, a byte a character. */
export const bytesOf = (text: string): string => Buffer.from(text).toString('latin1');

/** Every character from U+0100 to U+FFFF whose low byte is a control character, but surrogates. */
const TREACHEROUS: readonly string[] = range(0x100, 0xffff)
  .filter((code) => isControl(code & 0xff) && (code < 0xd800 || code > 0xdfff))
  .map((code) => String.fromCodePoint(code));

/** All these characters, in texts of at most so many. */
export const treacherousTexts = (charactersMax: number): string[] => {
  const texts: string[] = [];
  for (let at = 0; at < TREACHEROUS.length; at += charactersMax) {
    texts.push(`a${TREACHEROUS.slice(at, at + charactersMax).join('')}z`);
  }
  return texts;
};
