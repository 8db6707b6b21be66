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
import { benchSandbox } from './sandbox.ts';
import { benchSnapshot } from './snapshot.ts';

/** Each benchmark prints its figures beside those of a baseline that ran in alternating rounds. */
export const subjects: Readonly<Record<string, (args: readonly string[]) => Promise<void>>> = {
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
