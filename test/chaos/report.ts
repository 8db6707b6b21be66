import type { Findings } from './findings.ts';
import type { InjectedFault } from './run.ts';

const FAULTS_SHOWN_MAX = 8;
const OTHERS_SHOWN_MAX = 20;

const seconds = (ms: number): string => `${(ms / 1000).toFixed(1)} s`;

function median(sorted: readonly number[]): number {
  return sorted[Math.floor((sorted.length - 1) / 2)] ?? 0;
}

/** A line for each kind of fault: how often, and how long until callers were served again. */
function recoveryLines(injected: readonly InjectedFault[]): string[] {
  const kinds = new Set(injected.map(({ fault }) => fault.kind));
  return [...kinds].sort().map((kind) => {
    const all = injected.filter(({ fault, hasHit }) => fault.kind === kind && hasHit);
    const times = all.map(({ recoveryMs }) => recoveryMs).filter((ms) => ms !== undefined);
    times.sort((a, b) => a - b);
    const served =
      times.length === 0
        ? ''
        : `, served again after p50 ${seconds(median(times))}, max ${seconds(times.at(-1) ?? 0)}`;
    return `  ${kind}: ${all.length}${served}`;
  });
}

function describe({ fault, atMs, hasHit }: InjectedFault): string {
  const { kind, host, lastsMs } = fault;
  return `  ${seconds(atMs)} ${kind}, host ${host}, ${lastsMs} ms${hasHit ? '' : ' (nothing to hit)'}`;
}

interface RunOutcome {
  readonly findings: Findings;
  readonly injected: readonly InjectedFault[];
  readonly recoveriesMs: readonly number[];
}

/** A report for people; it begins with the command that repeats the run. */
export function describeRun(
  repeat: string,
  { findings, injected, recoveriesMs }: RunOutcome,
  logs: string,
): string {
  const lines = [
    repeat,
    'faults:',
    ...recoveryLines(injected),
    'counts:',
    ...findings.counts.map(([name, count]) => `  ${name}: ${count}`),
    `  losses: ${findings.countOf('losses')}, doubles: ${findings.countOf('doubles')}, leftovers: ${findings.countOf('leftovers')}`,
    `after each round callers were served within ${recoveriesMs.map(seconds).join(', ')}`,
  ];
  const [first, ...others] = findings.broken;
  if (first === undefined) return [...lines, 'nothing is broken'].join('\n');
  const before = injected.filter(({ atMs }) => atMs <= first.atMs).slice(-FAULTS_SHOWN_MAX);
  return [
    ...lines,
    `BROKEN at ${seconds(first.atMs)}: ${first.what}`,
    'faults before it:',
    ...before.map(describe),
    `${others.length} more:`,
    ...others.slice(0, OTHERS_SHOWN_MAX).map(({ atMs, what }) => `  ${seconds(atMs)} ${what}`),
    `logs: ${logs}`,
  ].join('\n');
}
