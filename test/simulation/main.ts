/* npm run simulate -- [--seed N] [--steps M]: a run by hand. */
import { parseArgs } from 'node:util';
import { describeRun } from './report.ts';
import { Simulator } from './surroundings.ts';

const { values: flags } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Math.floor(Date.now() / 1000) % 1_000_000) },
    steps: { type: 'string', default: '10000' },
  },
});
const [seed, steps] = [Number(flags.seed), Number(flags.steps)];
if (!Number.isSafeInteger(seed) || !(steps > 0)) {
  throw new Error('usage: npm run simulate -- [--seed N] [--steps M]');
}

await using simulator = await Simulator.open();
const begunAt = process.uptime(); // Seconds of real time.
const run = await simulator.run(seed, steps);
const seconds = Math.round((process.uptime() - begunAt) * 10) / 10;
process.stdout.write(`${describeRun(run)}\n${seconds} s\n`);
if (run.broken.length > 0) {
  process.stdout.write(`${describeRun(await simulator.shrink(run))}\n`);
  process.exitCode = 1;
}
