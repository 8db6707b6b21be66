import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';

const SAMPLE_MS = 2_000;
const POINTS_MAX = 120;
const WIDTH = 240;
const HEIGHT = 48;

/** Values of a figure since the page was opened; while it is unknown, nothing is added. */
function useSeries(value: number | undefined): readonly number[] {
  const [points, setPoints] = useState<readonly number[]>([]);
  const latest = useRef(value);
  latest.current = value;
  useEffect(() => {
    const sample = (): void => {
      const { current } = latest;
      if (current !== undefined) setPoints((old) => [...old.slice(1 - POINTS_MAX), current]);
    };
    sample();
    const timer = setInterval(sample, SAMPLE_MS);
    return () => clearInterval(timer);
  }, []);
  return points;
}

interface ChartProps {
  readonly label: string;
  readonly value: number | undefined;
  /** The value in words. */
  readonly shown: string;
}

/** A figure and how it came to be so. */
export function Chart({ label, value, shown }: ChartProps): JSX.Element {
  const points = useSeries(value);
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
        <strong>{shown}</strong>
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
