/* Every benchmark to its end, each part once and as short as it can be: `scripts/test --full`. */
import { chmod, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { END_MS, runOne } from '../../bench/run-all.ts';
import { subjects } from '../../bench/subjects.ts';
import { isFull } from '../helpers/full.ts';
import { findLeaks } from '../helpers/leaks.ts';

const program = new URL('../../bench/one.ts', import.meta.url).pathname;
const MINUTE_MS = 60_000;
const LIMIT_MS = 15 * MINUTE_MS;
/** When a benchmark has started its stack, and measures. */
const UNDER_WAY_MS = 20_000;

/** Flags besides `--rounds 1`. */
const least: Readonly<Record<string, readonly string[]>> = {
  bucket: ['--mib', '4', '--files', '100'],
  exec: ['--seconds', '1', '--calls', '60'],
  files: ['--mib', '4', '--files', '20'],
  ingress: ['--seconds', '1'],
  mount: ['--mib', '4'],
  objects: ['--seconds', '1', '--mib', '16'],
  process: ['--mib', '16', '--connections', '10'],
  sandbox: ['--fleet', '2', '--burst', '3'],
  snapshot: ['--dirty', '1'],
};

const runs: Readonly<Record<string, readonly string[]>> = {
  ...Object.fromEntries(
    Object.keys(subjects).map((name) => [name, [name, ...(least[name] ?? [])]]),
  ),
  'sandbox, its floor': ['sandbox', '--only', 'floor', '--prewarmed', '0', '--burst', '2'],
  'sandbox, without templates': ['sandbox', '--cold'],
  'image, with containers': ['image', '--only', 'create', '--runtime', 'container'],
  'snapshot, with containers': ['snapshot', '--runtime', 'container'],
};

/** Runs a benchmark with a directory for temporary files. @returns what it has left there too */
async function runIn(args: readonly string[], signal: AbortSignal) {
  const directory = await mkdtemp(join(tmpdir(), 'berth-'));
  await chmod(directory, 0o711); // Users of containers get to theirs through it.
  process.env['TMPDIR'] = directory;
  try {
    const run = await runOne(program, args, { limitMs: LIMIT_MS, endMs: END_MS, signal });
    const left = [...(await readdir(directory)), ...(await findLeaks(directory, '/none'))];
    return { ...run, left };
  } finally {
    delete process.env['TMPDIR'];
    await rm(directory, { recursive: true, force: true });
  }
}

const fullTest = isFull ? test.serial : test.skip;

for (const [name, args] of Object.entries(runs)) {
  fullTest(`${name}: runs to its end and leaves nothing`, async (t) => {
    t.timeout(LIMIT_MS + END_MS + MINUTE_MS);
    const never = new AbortController().signal;
    const { findings, error, left } = await runIn([...args, '--rounds', '1'], never);
    t.is(error, undefined);
    t.true(findings.length > 0);
    t.deepEqual(left, []);
  });
}

for (const name of Object.keys(subjects)) {
  fullTest(`${name}: ends when it is told to and leaves nothing`, async (t) => {
    t.timeout(UNDER_WAY_MS + END_MS + MINUTE_MS);
    const interruption = new AbortController();
    const running = runIn([name], interruption.signal);
    await sleep(UNDER_WAY_MS);
    interruption.abort();
    const { error, left } = await running;
    t.is(error, 'interrupted'); // And not killed.
    t.deepEqual(left, []);
  });
}
