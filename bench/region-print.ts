import type { RegionFigures } from './region-measure.ts';
import { report } from './statistics.ts';

type Cell = (figures: RegionFigures) => string;

const latency =
  (name: keyof RegionFigures['latencies']): Cell =>
  ({ latencies }) => {
    const { p50, p99, calls } = latencies[name];
    return `${p50.toFixed(0)} / ${p99.toFixed(0)} (${calls})`;
  };

const percent = (share: number): string => `${(share * 100).toFixed(0)} %`;

const sum = (values: readonly number[]): number => values.reduce((all, each) => all + each, 0);

/** Rows of a table of regions, from top to bottom. */
const rows: readonly (readonly [string, Cell])[] = [
  ['control nodes', ({ controls }) => String(controls)],
  ['  hosts linked to each, after the load', (f) => f.linksPerControl.toFixed(0)],
  ['sandboxes', ({ sandboxes }) => String(sandboxes)],
  ['disks', ({ disks }) => String(disks)],
  ['all registered after a restart of control, s', (f) => (f.registeredMs / 1000).toFixed(1)],
  ['  of that after all nodes were ready, s', (f) => (f.registeredAfterReadyMs / 1000).toFixed(1)],
  ['create until it runs, p50 / p99 ms (calls)', latency('create')],
  ['get, p50 / p99 ms', latency('get')],
  ['list sandboxes, p50 / p99 ms', latency('listSandboxes')],
  ['list 50 disks, p50 / p99 ms', latency('listDisks')],
  ['pause until paused, p50 / p99 ms', latency('pause')],
  ['resume until it runs, p50 / p99 ms', latency('resume')],
  ['lifecycle actions a second', (f) => f.actionsPerSecond.toFixed(0)],
  ['one control node, MiB', (f) => f.controlMiB.toFixed(0)],
  ['  per 1,000 sandboxes, MiB', (f) => f.controlMiBPerThousandSandboxes.toFixed(1)],
  ['Redis, MiB', (f) => f.redisMiB.toFixed(1)],
  ['  per 1,000 sandboxes, MiB', (f) => f.redisMiBPerThousandSandboxes.toFixed(2)],
  ['at rest: control, ms a minute and agent', (f) => f.controlMsPerAgentMinute.toFixed(1)],
  ['at rest: Redis, ms a minute and agent', (f) => f.redisMsPerAgentMinute.toFixed(1)],
  ['at rest: control (all), of a processor', (f) => percent(f.controlShareIdle)],
  ['at rest: Redis, of a processor', (f) => percent(f.redisShareIdle)],
  ['under load: control (all), of a processor', (f) => percent(f.controlShareLoaded)],
  ['under load: Redis, of a processor', (f) => percent(f.redisShareLoaded)],
  ['Redis commands a second and agent', (f) => f.redisCommandsPerAgentSecond.toFixed(1)],
  ['  round trips a second and agent', (f) => f.redisReadsPerAgentSecond.toFixed(1)],
  ['Redis connections per agent', (f) => f.redisConnectionsPerAgent.toFixed(1)],
  ['calls that failed', (f) => String(sum(Object.values(f.failures)))],
];

const line = (name: string, cells: readonly string[]): string =>
  `${name.padEnd(46)}${cells.map((cell) => cell.padStart(20)).join('')}\n`;

/** Reports every figure for other programs, by a name that ends in its unit. */
function reportRegion({ latencies, failures, ...figures }: RegionFigures): void {
  const named: Record<string, number> = { ...figures, failures: sum(Object.values(failures)) };
  for (const [name, { p50, p99 }] of Object.entries(latencies)) {
    Object.assign(named, { [`${name}P50Ms`]: p50, [`${name}P99Ms`]: p99 });
  }
  report({ title: `region of ${figures.agents} agents`, unit: '', rows: named });
}

/** Prints one column for each size. */
export function printRegions(figures: readonly RegionFigures[]): void {
  process.stdout.write(
    line(
      'agents',
      figures.map(({ agents }) => String(agents)),
    ) + rows.map(([name, cell]) => line(name, figures.map(cell))).join(''),
  );
  for (const each of figures) reportRegion(each);
  for (const { agents, failures, leftOut } of figures) {
    for (const [what, times] of Object.entries(failures)) {
      process.stdout.write(`${agents} agents, ${times} times: ${what}\n`);
    }
    if (leftOut > 0) process.stdout.write(`${agents} agents: ${leftOut} actions left out\n`);
  }
}
