import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { paths } from '../scripts/local-paths.ts';
import { createDisk, exec } from '../test/helpers/disks.ts';
import { Stack } from '../test/helpers/stack.ts';
import { processorMs } from './process-usage.ts';
import { printComparison } from './statistics.ts';

const SETTLED_MS = 5_000;
const COMMANDS = 200;
const READS = 2_000;
const AT_ONCE = 8;

const moduleUrl = (path: string): string => pathToFileURL(join(paths.root, path)).href;
const script = (text: string): string => `data:text/javascript,${encodeURIComponent(text)}`;

/** shared/spans.ts and shared/tracing/observe.ts, as they would be if there were no traces. */
const SPANS = script(`
  const none = () => undefined;
  const NO_SPAN = { rename: none, set: none, fail: none };
  const NO_FIELDS = {};
  export const setTracer = none, noteSpan = none, currentTraceparent = none;
  export const closeTracer = async () => undefined;
  export const traceFields = () => NO_FIELDS;
  export const inSpan = (span, work) => work(NO_SPAN);
  export const serveInSpan = (parent, span, work) => work(NO_SPAN);
  export const continueInSpan = serveInSpan;
`);
const OBSERVE = script(`
  import { createLogger } from ${JSON.stringify(moduleUrl('shared/log.ts'))};
  export const observe = async ({ cluster: { region, log } }, service, identity) =>
    createLogger(service, { ...identity, region }, log);
`);

/** Loads these instead of the modules; both sides have the hook, and one has nothing to replace. */
const replacing = (modules: Readonly<Record<string, string>>): string =>
  script(`
    import { registerHooks } from 'node:module';
    const modules = new Map(Object.entries(${JSON.stringify(modules)}));
    registerHooks({
      resolve: (name, context, next) => {
        const found = next(name, context);
        const url = modules.get(found.url);
        return url === undefined ? found : { url, format: 'module', shortCircuit: true };
      },
    });
  `);

const HOOKS = {
  ours: replacing({}),
  baseline: replacing({
    [moduleUrl('shared/spans.ts')]: SPANS,
    [moduleUrl('shared/tracing/observe.ts')]: OBSERVE,
  }),
};
type Side = keyof typeof HOOKS;

/** Proportional set size of a process. */
async function memoryMiB(pid: number): Promise<number> {
  const rollup = await readFile(`/proc/${pid}/smaps_rollup`, 'utf8');
  return Number(/^Pss:\s+(\d+) kB$/mu.exec(rollup)?.[1]) / 1024;
}

/** Calls so many times, by `AT_ONCE` callers. */
async function callTimes(count: number, call: () => Promise<unknown>): Promise<void> {
  const work = async (): Promise<void> => {
    for (let done = 0; done < count / AT_ONCE; done += 1) await call();
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

async function load(stack: Stack): Promise<void> {
  const api = await stack.newClient();
  const { id } = await createDisk(api);
  await callTimes(COMMANDS, () => exec(api, id, 'true'));
  await callTimes(READS, () => api.call('GET', `/api/disks/${id}`));
}

const FIGURES = ['start', 'idle', 'loaded'] as const;
type Figures = Record<`${'control' | 'agent'} ${(typeof FIGURES)[number]}`, number>;

async function measure(side: Side): Promise<Figures> {
  const stack = await Stack.start({ NODE_OPTIONS: `--import=${HOOKS[side]}`, LOG_LEVEL: 'warn' });
  try {
    const { control, agent } = stack;
    const started = [await processorMs(control.pid), await processorMs(agent.pid)] as const;
    await sleep(SETTLED_MS);
    const idle = [await memoryMiB(control.pid), await memoryMiB(agent.pid)] as const;
    await load(stack);
    await sleep(SETTLED_MS);
    const loaded = [await memoryMiB(control.pid), await memoryMiB(agent.pid)] as const;
    return {
      ...{ 'control start': started[0], 'control idle': idle[0], 'control loaded': loaded[0] },
      ...{ 'agent start': started[1], 'agent idle': idle[1], 'agent loaded': loaded[1] },
    };
  } finally {
    await stack.stop();
  }
}

const TITLES = {
  start: ['processor time until it is ready', 'ms'],
  idle: ['memory (PSS) when idle', 'MiB'],
  loaded: [`memory (PSS) after ${COMMANDS} commands and ${READS} reads`, 'MiB'],
} as const;

/**
 * `npm run bench -- tracing [--rounds N]`: what traces cost while they are off. The baseline is
 * the same stack with the modules of traces replaced by ones that only do the work.
 */
export async function benchTracing(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: { rounds: { type: 'string', default: '10' } },
  });
  const found = { ours: [] as Figures[], baseline: [] as Figures[] };
  for (let round = 0; round < Number(values.rounds); round += 1) {
    // Each of them comes first in turn.
    const sides: Side[] = round % 2 === 0 ? ['ours', 'baseline'] : ['baseline', 'ours'];
    for (const side of sides) found[side].push(await measure(side));
  }
  for (const part of ['control', 'agent'] as const) {
    for (const figure of FIGURES) {
      const [title, unit] = TITLES[figure];
      const pick = (side: Side): number[] => found[side].map((each) => each[`${part} ${figure}`]);
      printComparison(
        `${part}: ${title}`,
        { ours: pick('ours'), baseline: pick('baseline') },
        { ours: 'traces off', baseline: 'without traces' },
        { unit, target: '0.95 to 1.05' },
      );
    }
  }
}
