import * as fc from './fast-check.ts';

const SURROGATES = 0xd800;
const AFTER_SURROGATES = 0xe000;
const CODE_POINTS = 0x11_0000 - (AFTER_SURROGATES - SURROGATES);

const toText = (index: number): string =>
  String.fromCodePoint(index < SURROGATES ? index : index + AFTER_SURROGATES - SURROGATES);

function toIndex(text: unknown): number {
  const code = typeof text === 'string' ? text.codePointAt(0) : undefined;
  if (code === undefined || text !== String.fromCodePoint(code)) throw new Error('no code point');
  if (code < SURROGATES) return code;
  if (code < AFTER_SURROGATES) throw new Error('half a code point');
  return code - AFTER_SURROGATES + SURROGATES;
}

/**
 * Text of any code points. It is what fast-check calls the unit 'binary', which takes most of a
 * second in each process to build a table of a million code points.
 */
export const unicodeText = (constraints: Omit<fc.StringConstraints, 'unit'> = {}) =>
  fc.string({
    ...constraints,
    unit: fc.nat(CODE_POINTS - 1).map(toText, toIndex),
  });
