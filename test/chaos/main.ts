/* npm run chaos -- [--cluster] [--seed N] [--minutes M] [--only KIND,…]: a run by hand. */
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { readEnvFile } from '../../scripts/env-file.ts';
import { paths } from '../../scripts/local-paths.ts';
import { Cluster } from './cluster.ts';
import type { Findings } from './findings.ts';
import { MachineCluster } from './machine-cluster.ts';
import { MACHINE_RULES, PROCESS_RULES } from './plan.ts';
import { describeRun } from './report.ts';
import { ChaosRun } from './run.ts';
import type { System } from './system.ts';

const ROUND_MS = 60_000;
const root = new URL('../../', import.meta.url).pathname;

const { values: flags } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Math.floor(Date.now() / 1000) % 1_000_000) },
    minutes: { type: 'string', default: '5' },
    only: { type: 'string' },
    cluster: { type: 'boolean', default: false },
  },
});
const seed = Number(flags.seed);
const minutes = Number(flags.minutes);
const kinds = Object.keys(flags.cluster ? MACHINE_RULES : PROCESS_RULES);
/** `none` draws no faults: load alone. */
const only = flags.only?.split(',').filter((kind) => kind !== 'none');
const isKnown = only?.every((kind) => kinds.includes(kind)) ?? true;
if (!Number.isSafeInteger(seed) || !(minutes > 0) || !isKnown) {
  throw new Error(
    `usage: npm run chaos -- [--cluster] [--seed N] [--minutes M] [--only KIND,…]; kinds: none, ${kinds.join(', ')}`,
  );
}

const startSystem = (findings: Findings): Promise<System> =>
  flags.cluster ? MachineCluster.start(findings) : Cluster.start(findings);
const repeat = `npm run chaos -- ${flags.cluster ? '--cluster ' : ''}--seed ${seed} --minutes ${minutes}${
  flags.only === undefined ? '' : ` --only '${flags.only}'`
}`;
process.stdout.write(`${repeat}\n`);
const logs = join(root, `.local/chaos/${seed}`);
// The image and guest that set-up built, unless the environment names others.
Object.assign(process.env, { ...(await readEnvFile(paths.config)), ...process.env });
// Ctrl-C ends the round, checks its promises, prints the report and takes the system down; a second
// one ends the process at once.
const interrupted = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => interrupted.abort());
}
const run = await ChaosRun.start(startSystem);
const roundMs = Math.min(ROUND_MS, Math.round(minutes * 60_000));
const rounds = Math.ceil((minutes * 60_000) / roundMs);
for (let round = 0; round < rounds && run.findings.broken.length === 0; round += 1) {
  if (interrupted.signal.aborted) break;
  await run.round(seed, round, { roundMs, only, signal: interrupted.signal });
  process.stdout.write(`round ${round}: ${run.findings.broken.length} broken\n`);
}
await run.stop(logs);
process.stdout.write(`${describeRun(repeat, run, logs)}\n`);
if (run.findings.broken.length > 0) process.exitCode = 1;
