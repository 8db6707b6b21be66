/** The value below which the given share of the sorted samples lies. */
export function quantile(samples: readonly number[], share: number): number {
  const sorted = [...samples].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

export const median = (samples: readonly number[]): number => quantile(samples, 0.5);

/** @returns how many milliseconds it took */
export async function timed(run: () => Promise<void>): Promise<number> {
  const begunAt = performance.now();
  await run();
  return performance.now() - begunAt;
}

/** Alternates the two, so that both meet the same noise. Times are in milliseconds. */
export async function alternate(
  rounds: number,
  ours: () => Promise<void>,
  baseline: () => Promise<void>,
): Promise<{ ours: number[]; baseline: number[] }> {
  const times = { ours: [] as number[], baseline: [] as number[] };
  for (let round = 0; round < rounds; round += 1) {
    times.ours.push(await timed(ours));
    times.baseline.push(await timed(baseline));
  }
  return times;
}

/** One line of figures for each row. */
export function printRows(
  title: string,
  rows: readonly { readonly name: string; readonly samples: readonly number[] }[],
  unit: string,
): void {
  const lines = rows.map(({ name, samples }) => `  ${row(name, samples, unit)}\n`);
  process.stdout.write(`${title}\n${lines.join('')}\n`);
}

const row = (name: string, samples: readonly number[], unit: string): string =>
  [
    name.padEnd(28),
    `p50 ${median(samples).toFixed(1)}`,
    `p90 ${quantile(samples, 0.9).toFixed(1)}`,
    `p99 ${quantile(samples, 0.99).toFixed(1)}`,
    unit,
  ].join('  ');

/** Prints both rows, their ratio, and the target that the ratio is held against. */
export function printComparison(
  title: string,
  times: { ours: readonly number[]; baseline: readonly number[] },
  names: { ours: string; baseline: string },
  options: { unit: string; target: string },
): void {
  const ratio = median(times.ours) / median(times.baseline);
  process.stdout.write(
    `${title}\n  ${row(names.ours, times.ours, options.unit)}\n` +
      `  ${row(names.baseline, times.baseline, options.unit)}\n` +
      `  ratio of p50: ${ratio.toFixed(2)} (target ${options.target})\n\n`,
  );
}
