/* npm run chaos -- [--seed N] [--minutes M] [--only KIND,…]: a run by hand. */
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { readEnvFile } from '../../scripts/env-file.ts';
import { paths } from '../../scripts/local-paths.ts';
import { faultKinds } from './plan.ts';
import { describeRun } from './report.ts';
import { ChaosRun } from './run.ts';

const ROUND_MS = 60_000;
const root = new URL('../../', import.meta.url).pathname;

const { values: flags } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Math.floor(Date.now() / 1000) % 1_000_000) },
    minutes: { type: 'string', default: '5' },
    only: { type: 'string' },
  },
});
const seed = Number(flags.seed);
const minutes = Number(flags.minutes);
const kinds = flags.only?.split(',') ?? faultKinds;
const only = faultKinds.filter((kind) => kinds.includes(kind));
if (!Number.isSafeInteger(seed) || !(minutes > 0) || only.length < kinds.length) {
  throw new Error(
    `usage: npm run chaos -- [--seed N] [--minutes M] [--only KIND,…]; kinds: ${faultKinds.join(', ')}`,
  );
}

const repeat = `npm run chaos -- --seed ${seed} --minutes ${minutes}${
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
const run = await ChaosRun.start();
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
