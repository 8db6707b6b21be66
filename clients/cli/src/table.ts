import measure from 'fast-string-truncated-width';
import { visible } from './text.ts';

/** A column of a list. */
export interface Column<T> {
  readonly head: string;
  readonly of: (row: T) => string;
  /** Gives way first when the terminal is too narrow. */
  readonly gives?: boolean;
  /** Dresses the padded text; it must not change its width. */
  readonly paint?: (text: string) => string;
}

const GAP = 2;
const WIDTH_MIN = 8;
const ELLIPSIS = '…';

const widthOf = (text: string): number => measure(text).width;

/** The text, cut and padded to a width in columns of the terminal. */
function fit(text: string, width: number): string {
  const { index, ellipsed, width: used } = measure(text, { limit: width, ellipsis: ELLIPSIS });
  const shown = ellipsed ? text.slice(0, index) + ELLIPSIS : text;
  return shown + ' '.repeat(Math.max(0, width - used));
}

/**
 * How wide each column is so that all fit: those that give way shrink first, the widest of them
 * most.
 */
function shrink(widths: number[], gives: readonly boolean[], room: number): void {
  const total = (): number => widths.reduce((sum, width) => sum + width + GAP, -GAP);
  for (const isTurn of [(i: number) => gives[i] === true, () => true]) {
    while (total() > room) {
      const candidates = widths.keys().filter((i) => isTurn(i) && (widths[i] ?? 0) > WIDTH_MIN);
      const widest = candidates.reduce<number | undefined>(
        (best, i) => (best === undefined || (widths[i] ?? 0) > (widths[best] ?? 0) ? i : best),
        undefined,
      );
      if (widest === undefined) break;
      widths[widest] = (widths[widest] ?? 0) - 1;
    }
  }
}

/**
 * Rows under their heads.
 * @param room columns of the terminal; undefined: nothing is cut
 */
export function formatTable<T>(
  rows: readonly T[],
  columns: readonly Column<T>[],
  room: number | undefined,
): string {
  const cells = rows.map((row) => columns.map(({ of }) => visible(of(row))));
  const widths = columns.map(({ head }, i) =>
    Math.max(widthOf(head), ...cells.map((row) => widthOf(row[i] ?? ''))),
  );
  if (room !== undefined) {
    shrink(
      widths,
      columns.map(({ gives }) => gives === true),
      room,
    );
  }
  const line = (texts: readonly string[], isHead: boolean): string =>
    columns
      .map(({ paint }, i) => {
        const isLast = i === columns.length - 1;
        const text = fit(texts[i] ?? '', widths[i] ?? 0);
        const padded = isLast ? text.trimEnd() : text;
        return isHead || paint === undefined ? padded : paint(padded);
      })
      .join(' '.repeat(GAP))
      .trimEnd();
  const heads = columns.map(({ head }) => head);
  return [line(heads, true), ...cells.map((row) => line(row, false)), ''].join('\n');
}
