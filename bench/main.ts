import { parseArgs } from 'node:util';
import { Stack } from '../test/helpers/stack.ts';
import { benchBucket } from './bucket.ts';
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
import { runAll } from './run-all.ts';
import { benchSandbox } from './sandbox.ts';
import { benchSnapshot } from './snapshot.ts';

/** Each benchmark prints its figures beside those of a baseline that ran in alternating rounds. */
const benches: Readonly<Record<string, (args: readonly string[]) => Promise<void>>> = {
  bucket: benchBucket,
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
  sandbox: benchSandbox,
  snapshot: benchSnapshot,
};

const LIMITS = { eachMs: 15 * 60_000, endMs: 2 * 60_000 } as const;

/** `npm run bench -- all [--json FILE] [--only NAME,NAME,…] [--minutes N]` */
async function benchAll(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      json: { type: 'string' },
      only: { type: 'string', default: Object.keys(benches).join(',') },
      minutes: { type: 'string', default: '120' },
    },
  });
  const names = values.only.split(',');
  const unknown = names.find((name) => !(name in benches));
  if (unknown !== undefined) throw new Error(`there is no benchmark ${unknown}`);
  const minutes = Number(values.minutes);
  if (!(minutes > 0)) throw new Error('--minutes: a number above 0');
  const interrupted = new AbortController();
  for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => interrupted.abort());
  const limits = { ...LIMITS, allMs: minutes * 60_000 };
  const options = { limits, file: values.json, signal: interrupted.signal };
  const runs = await runAll(import.meta.filename, names, options);
  if (runs.some(({ error }) => error !== undefined)) process.exitCode = 1;
}

const [name = '', ...args] = process.argv.slice(2);
const bench = benches[name];
if (name === 'all') {
  await benchAll(args);
} else if (bench === undefined) {
  const names = ['all', ...Object.keys(benches)].join('|');
  process.stderr.write(`usage: npm run bench -- <${names}> [flags]\n`);
  process.exitCode = 1;
} else {
  // Without its stack a benchmark fails, and ends what else it has started.
  process.once('SIGTERM', () => void Stack.stopAll());
  await bench(args);
}
