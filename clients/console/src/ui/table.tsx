import type { ComponentChildren, JSX } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';

export interface Column<T> {
  readonly title: string;
  readonly cell: (row: T) => ComponentChildren;
  /** Left out where the window is narrow. */
  readonly isExtra?: boolean;
  readonly isNumber?: boolean;
  readonly isActions?: boolean;
}

interface TableProps<T> {
  readonly label: string;
  readonly columns: readonly Column<T>[];
  readonly rows: readonly T[];
  readonly keyOf: (row: T) => string;
}

const ROW_PX = 49;
/** Tables with more rows than this hold only the rows near the visible part of the page. */
const WHOLE_MAX = 120;
const BEYOND = 12;

const classOf = <T,>({ isExtra, isNumber, isActions }: Column<T>): string =>
  [isExtra && 'extra', isNumber && 'number', isActions && 'row-actions'].filter(Boolean).join(' ');

/** The range of rows, of a long table, that is near the visible part of the page. */
function useWindow(
  count: number,
): [table: { current: HTMLTableElement | null }, from: number, to: number] {
  const table = useRef<HTMLTableElement>(null);
  const [from, setFrom] = useState(0);
  const isLong = count > WHOLE_MAX;
  useLayoutEffect(() => {
    if (!isLong) return undefined;
    const look = (): void => {
      const top = table.current?.getBoundingClientRect().top ?? 0;
      const first = Math.floor(-top / ROW_PX) - BEYOND;
      setFrom(Math.max(0, Math.min(first - (first % BEYOND), count)));
    };
    look();
    addEventListener('scroll', look, { passive: true });
    addEventListener('resize', look);
    return () => {
      removeEventListener('scroll', look);
      removeEventListener('resize', look);
    };
  }, [isLong, count]);
  if (!isLong) return [table, 0, count];
  const shown = Math.ceil(innerHeight / ROW_PX) + 3 * BEYOND;
  return [table, from, Math.min(count, from + shown)];
}

const Space = ({ rows, columns }: { rows: number; columns: number }): JSX.Element | null =>
  rows <= 0 ? null : (
    <tr aria-hidden="true">
      <td colSpan={columns} class="space" style={{ height: `${rows * ROW_PX}px` }} />
    </tr>
  );

export function Table<T>({ label, columns, rows, keyOf }: TableProps<T>): JSX.Element {
  const [table, from, to] = useWindow(rows.length);
  return (
    <div class="table-box">
      <table ref={table} aria-label={label} aria-rowcount={rows.length + 1}>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.title} scope="col" class={classOf(column)}>
                {column.isActions === true ? (
                  <span class="hidden">{column.title}</span>
                ) : (
                  column.title
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <Space rows={from} columns={columns.length} />
          {rows.slice(from, to).map((row, n) => (
            <tr key={keyOf(row)} aria-rowindex={from + n + 2}>
              {columns.map((column) => (
                <td key={column.title} class={classOf(column)}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
          <Space rows={rows.length - to} columns={columns.length} />
        </tbody>
      </table>
    </div>
  );
}
