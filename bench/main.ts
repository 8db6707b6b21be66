/*
 * `npm run bench -- NAME [flags]`, or `all [--json FILE] [--only NAME,NAME,…] [--minutes N]`: see
 * docs/benchmarks.md.
 */
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { END_MS, runAll, runOne } from './run-all.ts';
import { subjects } from './subjects.ts';

const program = join(import.meta.dirname, 'one.ts');
const EACH_MS = 15 * 60_000;
const DAY_MS = 24 * 3_600_000;

const interruption = new AbortController();
const { signal } = interruption;
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(name, () => interruption.abort());
}

/** @returns whether all have succeeded */
async function benchAll(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      json: { type: 'string' },
      only: { type: 'string', default: Object.keys(subjects).join(',') },
      minutes: { type: 'string', default: '120' },
    },
  });
  const names = values.only.split(',');
  const unknown = names.find((name) => !(name in subjects));
  if (unknown !== undefined) throw new Error(`there is no benchmark ${unknown}`);
  const minutes = Number(values.minutes);
  if (!(minutes > 0)) throw new Error('--minutes: a number above 0');
  const limits = { eachMs: EACH_MS, endMs: END_MS, allMs: minutes * 60_000 };
  const runs = await runAll(program, names, { limits, file: values.json, signal });
  return runs.every(({ error }) => error === undefined);
}

async function benchOne(name: string, args: readonly string[]): Promise<boolean> {
  const { error } = await runOne(program, [name, ...args], {
    limitMs: DAY_MS,
    endMs: END_MS,
    signal,
  });
  if (error !== undefined) process.stderr.write(`${name}: ${error}\n`);
  return error === undefined;
}

const [name = '', ...args] = process.argv.slice(2);
if (name === 'all' || name in subjects) {
  const isDone = name === 'all' ? await benchAll(args) : await benchOne(name, args);
  process.exitCode = isDone ? 0 : 1;
} else {
  const names = ['all', ...Object.keys(subjects)].join('|');
  process.stderr.write(`usage: npm run bench -- <${names}> [flags]\n`);
  process.exitCode = 1;
}
