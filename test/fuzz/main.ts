import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { relative } from 'node:path';
import { parseArgs } from 'node:util';
import { keepInput, readCorpus } from './corpus.ts';
import { fuzz } from './engine.ts';
import type { Target } from './target.ts';
import { targets } from './targets.ts';

const USAGE = `usage: npm run fuzz -- [target …] [--seconds N] [--seed N]
targets: ${targets.map(({ name }) => name).join(', ')}, native; all of them when none is named
--seconds: for each target, 30 unless told
--seed: what was printed before, to do the same again
`;

const isKnown = (name: string): boolean =>
  name === 'native' || targets.some((target) => target.name === name);

/** The C parts have fuzzers of their own; see scripts/fuzz-native. */
async function fuzzNative(seconds: number, seed: number): Promise<boolean> {
  const program = new URL('../../scripts/fuzz-native', import.meta.url).pathname;
  const child = spawn(program, [`SECONDS=${seconds}`, `SEED=${seed}`], { stdio: 'inherit' });
  const [code] = (await once(child, 'exit')) as [number | null];
  return code === 0;
}

/** @returns whether everything held */
async function fuzzTarget(target: Target, seconds: number, seed: number): Promise<boolean> {
  const corpus = await readCorpus(target);
  const until = performance.now() + seconds * 1000;
  const plan = { seed, corpus, executions: Infinity, until, isGuided: true };
  const { executions, found, failure } = await fuzz(target, plan);
  for (const input of found) await keepInput(target, 'input', input);
  const figures = `${executions} executions, corpus ${corpus.length}, ${found.length} new`;
  process.stdout.write(`${target.name}: ${figures}, seed ${seed}\n`);
  if (failure === undefined) return true;
  const path = await keepInput(target, 'failure', failure.input);
  const input = relative(process.cwd(), path);
  process.stdout.write(`${target.name} FAILED on ${input}\n${failure.error.stack}\n`);
  return false;
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { seconds: { type: 'string' }, seed: { type: 'string' } },
  });
  const seconds = Number(values.seconds ?? 30);
  const seed = Number(values.seed ?? Math.floor(Date.now() / 1000));
  const names = positionals.length > 0 ? positionals : [...targets.map((t) => t.name), 'native'];
  if (!Number.isFinite(seconds) || !Number.isFinite(seed) || !names.every(isKnown)) {
    process.stderr.write(USAGE);
    process.exitCode = 2;
    return;
  }
  let isFine = true;
  for (const target of targets) {
    if (names.includes(target.name)) isFine = (await fuzzTarget(target, seconds, seed)) && isFine;
  }
  if (names.includes('native')) isFine = (await fuzzNative(seconds, seed)) && isFine;
  process.exitCode = isFine ? 0 : 1;
}

await main();
