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
};

const [name = '', ...args] = process.argv.slice(2);
const bench = benches[name];
if (bench === undefined) {
  process.stderr.write(`usage: npm run bench -- <${Object.keys(benches).join('|')}> [flags]\n`);
  process.exitCode = 1;
} else {
  await bench(args);
}
