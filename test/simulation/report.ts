import type { Run } from './simulation.ts';

const TRACE_LINES = 80;

/** Seed and figures; of a failure also what was broken and what came before. */
export function describeRun(run: Run): string {
  const { seed, steps, broken, counts, reached, crashPoints, trace } = run;
  const figures = [...counts].map(([kind, count]) => `${kind} ${count}`).join(', ');
  const points = `${reached.size} points reached, the agent killed at ${crashPoints.size} of them`;
  const summary = `seed ${seed}, ${steps} steps: ${figures}; ${points}`;
  if (broken.length === 0) return summary;
  return [
    summary,
    'broken:',
    ...broken.map((each) => `  ${each}`),
    'before it:',
    ...trace.slice(-TRACE_LINES),
    `repeat it by: npm run simulate -- --seed ${seed} --steps ${steps}`,
  ].join('\n');
}
