import { writeFile } from 'node:fs/promises';
import { loadavg } from 'node:os';
import { parseArgs } from 'node:util';
import { toError } from '../shared/errors.ts';
import { benchBucket } from './bucket.ts';
import { benchCli } from './cli.ts';
import { benchConfirmation } from './confirmation.ts';
import { benchConsole } from './console.ts';
import { benchContainerSandbox } from './container-sandbox.ts';
import { benchExec } from './exec.ts';
import { benchFiles } from './files.ts';
import { benchGrep } from './grep.ts';
import { benchImage } from './image.ts';
import { benchIngress } from './ingress.ts';
import { benchMount } from './mount.ts';
import { benchNetwork } from './network.ts';
import { benchObjects } from './objects.ts';
import { benchProcess } from './process.ts';
import { benchRegion } from './region.ts';
import { benchSandbox } from './sandbox.ts';
import { benchSnapshot } from './snapshot.ts';
import { benchTracing } from './tracing.ts';
import { takeFindings } from './statistics.ts';

/** Each benchmark prints its figures beside those of a baseline that ran in alternating rounds. */
const benches: Readonly<Record<string, (args: readonly string[]) => Promise<void>>> = {
  bucket: benchBucket,
  cli: benchCli,
  confirmation: benchConfirmation,
  console: benchConsole,
  'container-sandbox': benchContainerSandbox,
  exec: benchExec,
  files: benchFiles,
  grep: benchGrep,
  image: benchImage,
  ingress: benchIngress,
  mount: benchMount,
  network: benchNetwork,
  objects: benchObjects,
  process: benchProcess,
  region: benchRegion,
  sandbox: benchSandbox,
  snapshot: benchSnapshot,
  tracing: benchTracing,
};

interface Run {
  readonly bench: string;
  readonly findings: ReturnType<typeof takeFindings>;
  /** Load of the machine over a minute before the benchmark and at its end. */
  readonly load: readonly [before: number, after: number];
  readonly error?: string;
}

const loadNow = (): number => loadavg()[0] ?? 0;

/**
 * Runs benchmarks one after the other, with their own default lengths. One that fails does not keep
 * the others away.
 */
async function runAll(names: readonly string[], file: string | undefined): Promise<void> {
  const unknown = names.find((name) => !(name in benches));
  if (unknown !== undefined) throw new Error(`there is no benchmark ${unknown}`);
  const runs: Run[] = [];
  for (const bench of names) {
    const before = loadNow();
    process.stdout.write(`== ${bench} (load ${before.toFixed(1)})\n`);
    const error = await benches[bench]?.([]).then(() => undefined, toError);
    if (error !== undefined) process.exitCode = 1;
    if (error !== undefined) process.stderr.write(`${bench}: ${error.message}\n`);
    const failure = error === undefined ? {} : { error: error.message };
    runs.push({ bench, findings: takeFindings(), load: [before, loadNow()], ...failure });
    // After each one, so that a run that is interrupted leaves what it found.
    if (file !== undefined) await writeFile(file, `${JSON.stringify(runs, undefined, 2)}\n`);
  }
}

const [name = '', ...args] = process.argv.slice(2);
const bench = benches[name];
if (name === 'all') {
  const { values } = parseArgs({
    args,
    options: { json: { type: 'string' }, only: { type: 'string' } },
  });
  await runAll(values.only?.split(',') ?? Object.keys(benches), values.json);
} else if (bench === undefined) {
  const names = ['all', ...Object.keys(benches)].join('|');
  process.stderr.write(`usage: npm run bench -- <${names}> [flags]\n`);
  process.exitCode = 1;
} else {
  await bench(args);
}
