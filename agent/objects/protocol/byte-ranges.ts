import { LIMITS } from '../../../shared/limits.ts';

/** Both ends included, as HTTP counts them. */
export interface ByteRange {
  readonly start: number;
  readonly end: number;
}

const RANGE = /^(?:(?<first>\d+)-(?<last>\d*)|-(?<suffix>\d+))$/u;

/** One range of a header: cut to the file, `unsatisfiable`, or `malformed`. */
function parseRange(text: string, size: number): ByteRange | 'unsatisfiable' | 'malformed' {
  const groups = RANGE.exec(text)?.groups;
  if (groups === undefined) return 'malformed';
  const { first, last = '', suffix } = groups;
  if (first === undefined) {
    const length = Number(suffix);
    return length === 0 || size === 0
      ? 'unsatisfiable'
      : { start: Math.max(0, size - length), end: size - 1 };
  }
  const start = Number(first);
  const end = last === '' ? Number.POSITIVE_INFINITY : Number(last);
  if (end < start) return 'malformed';
  return start >= size ? 'unsatisfiable' : { start, end: Math.min(end, size - 1) };
}

/** Ranges that overlap or touch become one, in the place of the first of them. */
function combine(ranges: readonly ByteRange[]): ByteRange[] {
  const combined: (ByteRange & { place: number })[] = [];
  const placed = ranges.map((range, place) => ({ ...range, place }));
  for (const range of placed.toSorted((a, b) => a.start - b.start)) {
    const before = combined.at(-1);
    if (before === undefined || range.start > before.end + 1) {
      combined.push(range);
      continue;
    }
    const end = Math.max(before.end, range.end);
    const place = Math.min(before.place, range.place);
    combined[combined.length - 1] = { start: before.start, end, place };
  }
  return combined.toSorted((a, b) => a.place - b.place).map(({ start, end }) => ({ start, end }));
}

/**
 * The parts of a file that a Range header asks for (RFC 9110, section 14.2); undefined: the whole
 * file, because the header is malformed, of another unit, or asks for more parts than are sensible.
 * Empty: nothing of the file is asked for. Pure.
 */
export function parseRanges(header: string, size: number): ByteRange[] | undefined {
  const [, list] = /^bytes=(.*)$/isu.exec(header) ?? [];
  if (list === undefined) return undefined;
  const items = list.split(',').map((item) => item.trim());
  const texts = items.filter((item) => item !== ''); // Section 5.6.1: empty elements are ignored.
  if (texts.length === 0 || texts.length > LIMITS.rangesMax) return undefined;
  const ranges = texts.map((text) => parseRange(text, size));
  if (ranges.includes('malformed')) return undefined;
  return combine(ranges.filter((range) => typeof range === 'object'));
}
