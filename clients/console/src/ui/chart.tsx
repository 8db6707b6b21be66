import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';

const POINTS_MAX = 120;
const WIDTH = 240;
const HEIGHT = 48;

/** Values of a figure since the page was opened, at each time it was asked for. */
export function useSeries(value: number | undefined, at: unknown): readonly number[] {
  const [points, setPoints] = useState<readonly number[]>([]);
  const seen = useRef<unknown>(undefined);
  useEffect(() => {
    if (value === undefined || seen.current === at) return;
    seen.current = at;
    setPoints((old) => [...old.slice(1 - POINTS_MAX), value]);
  }, [value, at]);
  return points;
}

interface ChartProps {
  readonly label: string;
  readonly value: string;
  readonly points: readonly number[];
}

/** A figure and how it came to be so. */
export function Chart({ label, value, points }: ChartProps): JSX.Element {
  const max = Math.max(...points, 1);
  const step = WIDTH / Math.max(POINTS_MAX / 4, points.length - 1);
  const from = WIDTH - step * (points.length - 1);
  const at = (point: number, n: number): string =>
    `${(from + n * step).toFixed(1)},${(HEIGHT - 3 - (point / max) * (HEIGHT - 8)).toFixed(1)}`;
  const line = points.map(at).join(' ');
  return (
    <figure class="chart">
      <figcaption>
        {label}
        <strong>{value}</strong>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
        {points.length < 2 ? null : (
          <>
            <polygon points={`${from},${HEIGHT} ${line} ${WIDTH},${HEIGHT}`} />
            <polyline points={line} vector-effect="non-scaling-stroke" />
          </>
        )}
      </svg>
    </figure>
  );
}
