/*
 * Lists what a control node and scripts/admin consist of, a path of this checkout on each line:
 * every own file and every npm package that they reach by imports.
 */
import { join } from 'node:path';
import { build } from 'esbuild';
import { paths } from './local-paths.ts';

/** Programs of the image. The worker and the pages' script are named by URLs, not by imports. */
const ENTRIES = [
  'control/main.ts',
  'control/site/docs/build-worker.ts',
  'scripts/admin.ts',
  'scripts/is-ready.ts',
];

const { metafile } = await build({
  absWorkingDir: paths.root,
  entryPoints: ENTRIES,
  bundle: true,
  platform: 'node',
  format: 'esm',
  write: false,
  outdir: join(paths.root, '.local'), // Nothing is written.
  metafile: true,
  logLevel: 'error',
});

/**
 * The package's directory, for a package of npm: it may read files besides those that it imports.
 */
const partOf = (path: string): string =>
  /^.*node_modules\/(?:@[^/]+\/)?[^/]+/u.exec(path)?.[0] ?? path;

for (const part of new Set(Object.keys(metafile.inputs).map(partOf))) console.log(part);
