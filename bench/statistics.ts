import { setTimeout as sleep } from 'node:timers/promises';
import { ending } from './ending.ts';

/** A comparison, or a list of figures. */
export interface Finding {
  readonly title: string;
  readonly unit: string;
  /** By what was measured: median and 90th percentile of samples, or the one figure there is. */
  readonly rows: Readonly<Record<string, { readonly p50: number; readonly p90: number } | number>>;
  /** Ratio of the medians, for comparisons. */
  readonly ratio?: number;
  readonly target?: string;
}

/** Tells the process that runs all benchmarks, if this one is part of that. */
const report = (finding: Finding): void => void process.send?.(finding);

const NAME_WIDTH = 28;

const summary = (samples: readonly number[]) => ({
  p50: median(samples),
  p90: quantile(samples, 0.9),
});

/** The value below which the given share of the sorted samples lies. */
export function quantile(samples: readonly number[], share: number): number {
  const sorted = [...samples].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

export const median = (samples: readonly number[]): number => quantile(samples, 0.5);

/** @returns how many milliseconds it took */
export async function timed(run: () => Promise<unknown>): Promise<number> {
  const begunAt = performance.now();
  await run();
  return performance.now() - begunAt;
}

/**
 * Runs, and rests until `everyMs` have passed since it began.
 * @returns how many milliseconds the run took
 */
export async function paced(run: () => Promise<unknown>, everyMs: number): Promise<number> {
  const tookMs = await timed(run);
  await sleep(Math.max(0, everyMs - tookMs));
  return tookMs;
}

type Measurements = Readonly<Record<string, () => Promise<unknown>>>;

/**
 * Takes measurements in turns, so that all meet the same noise.
 * @param warmUp rounds before those that count
 */
export async function inTurns<M extends Measurements>(
  rounds: number,
  measurements: M,
  warmUp = 0,
): Promise<{ [Name in keyof M]: Awaited<ReturnType<M[Name]>>[] }> {
  const found = new Map<string, unknown[]>(Object.keys(measurements).map((name) => [name, []]));
  for (let round = -warmUp; round < rounds; round += 1) {
    for (const [name, measure] of Object.entries(measurements)) {
      ending.throwIfAborted();
      const value = await measure();
      if (round >= 0) found.get(name)?.push(value);
    }
  }
  return Object.fromEntries(found) as { [Name in keyof M]: Awaited<ReturnType<M[Name]>>[] };
}

/** The milliseconds that the two took, in turns. */
export const alternate = (
  rounds: number,
  ours: () => Promise<unknown>,
  baseline: () => Promise<unknown>,
  warmUp = 0,
): Promise<{ ours: number[]; baseline: number[] }> =>
  inTurns(rounds, { ours: () => timed(ours), baseline: () => timed(baseline) }, warmUp);

/** Prints figures that were measured once, a line for each. */
export function printFigures(
  title: string,
  figures: Readonly<Record<string, number>>,
  { unit, target, digits = 1 }: { unit: string; target?: string; digits?: number },
): void {
  const held = target === undefined ? {} : { target };
  report({ title, unit, rows: figures, ...held });
  const lines = Object.entries(figures).map(
    ([name, value]) => `  ${name.padEnd(NAME_WIDTH)}  ${value.toFixed(digits)} ${unit}\n`,
  );
  const targetLine = target === undefined ? '' : ` (target ${target})`;
  process.stdout.write(`${title}${targetLine}\n${lines.join('')}\n`);
}

/** Prints a line of figures for each row. */
export function printRows(
  title: string,
  rows: readonly { readonly name: string; readonly samples: readonly number[] }[],
  unit: string,
): void {
  const summaries = rows.map(({ name, samples }) => [name, summary(samples)] as const);
  report({ title, unit, rows: Object.fromEntries(summaries) });
  const lines = rows.map(({ name, samples }) => `  ${row(name, samples, unit)}\n`);
  process.stdout.write(`${title}\n${lines.join('')}\n`);
}

const row = (name: string, samples: readonly number[], unit: string, digits = 1): string =>
  [
    name.padEnd(NAME_WIDTH),
    `p50 ${median(samples).toFixed(digits)}`,
    `p90 ${quantile(samples, 0.9).toFixed(digits)}`,
    `p99 ${quantile(samples, 0.99).toFixed(digits)}`,
    unit,
  ].join('  ');

/** Prints both rows, their ratio, and the target that the ratio is held against. */
export function printComparison(
  title: string,
  times: { ours: readonly number[]; baseline: readonly number[] },
  names: { ours: string; baseline: string },
  options: { unit: string; target: string; digits?: number },
): void {
  const ratio = median(times.ours) / median(times.baseline);
  const rows = {
    [names.ours]: summary(times.ours),
    [names.baseline]: summary(times.baseline),
  };
  report({ title, unit: options.unit, rows, ratio, target: options.target });
  process.stdout.write(
    `${title}\n  ${row(names.ours, times.ours, options.unit, options.digits)}\n` +
      `  ${row(names.baseline, times.baseline, options.unit, options.digits)}\n` +
      `  ratio of p50: ${ratio.toFixed(2)} (target ${options.target})\n\n`,
  );
}
