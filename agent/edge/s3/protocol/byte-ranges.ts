import rangeParser from 'range-parser';
import { EDGE_LIMITS } from '../../limits.ts';

/** Both ends included, as HTTP counts them. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}

/**
 * Rewrites a range for range-parser, which takes a suffix longer than the file for one that cannot
 * be satisfied, and passes over a range that ends before it starts. Undefined: malformed.
 */
function normalizeRange(text: string, size: number): string | undefined {
  const [, first = '', last = ''] = /^(\d*)-(\d*)$/u.exec(text) ?? [];
  if (first === '' && last === '') return undefined;
  if (first === '') return Number(last) > size ? '0-' : text;
  return last !== '' && Number(last) < Number(first) ? undefined : text;
}

/**
 * The parts of a file that a Range header asks for (RFC 9110, section 14.2), in the order asked
 * for; parts that overlap or touch are combined. Pure.
 * @returns undefined for the whole file, because the header is malformed, in another unit, or asks
 *   for more than `EDGE_LIMITS.rangesMax` parts; empty when no part of it lies in the file
 */
export function parseRanges(header: string, size: number): ByteRange[] | undefined {
  const [, list] = /^bytes=(.*)$/isu.exec(header) ?? [];
  if (list === undefined) return undefined;
  const items = list.split(',').map((item) => item.trim());
  const texts = items.filter((item) => item !== ''); // Section 5.6.1: empty elements are ignored.
  if (texts.length === 0 || texts.length > EDGE_LIMITS.rangesMax) return undefined;
  const ranges = texts.map((text) => normalizeRange(text, size));
  if (ranges.includes(undefined)) return undefined;
  const parsed = rangeParser(size, `bytes=${ranges.join(',')}`, { combine: true });
  return typeof parsed === 'number' ? [] : parsed.map(({ start, end }) => ({ start, end }));
}
