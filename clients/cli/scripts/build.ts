/**
 * Builds the program into dist/, or into the directory that is given: everything that it needs, in
 * pieces that are loaded when they are used.
 */
import { copyFile, mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { build } from 'esbuild';

const root = join(import.meta.dirname, '..');
const dist = process.argv[2] ?? join(root, 'dist');

/** The directories of the packages that went into the program. */
function packagesOf(inputs: Readonly<Record<string, unknown>>): Set<string> {
  const found = Object.keys(inputs).map(
    (path) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/u.exec(path)?.[0],
  );
  return new Set(found.filter((path) => path !== undefined));
}

/** The program contains them, so their licences come along. */
async function copyLicences(packages: ReadonlySet<string>): Promise<void> {
  await mkdir(join(dist, 'licenses'), { recursive: true });
  for (const directory of packages) {
    const path = join(root, directory);
    const licence = (await readdir(path)).find((name) => /^licen[cs]e/iu.test(name));
    const name = directory.replace(/^.*node_modules\//u, '').replace('/', '-');
    if (licence !== undefined) await copyFile(join(path, licence), join(dist, 'licenses', name));
  }
}

await rm(dist, { recursive: true, force: true });
const { metafile } = await build({
  absWorkingDir: root,
  entryPoints: ['src/main.ts'],
  outdir: dist,
  bundle: true,
  splitting: true,
  format: 'esm',
  platform: 'node',
  target: 'node22',
  conditions: ['berth-source'],
  minifySyntax: true,
  minifyWhitespace: true,
  define: {
    __dirname: 'import.meta.dirname',
    // Compiled parts of ws, which would be looked for at each start.
    'process.env.WS_NO_BUFFER_UTIL': '"1"',
    'process.env.WS_NO_UTF_8_VALIDATE': '"1"',
  },
  external: ['cpu-features', '*.node'], // Optional parts of ssh2 that would have to be compiled.
  // Packages that are CommonJS ask for built-in modules by `require`. Making that of `node:module`
  // in each piece would take a tenth of start-up.
  banner: {
    js: 'const require = (name) => { const found = process.getBuiltinModule(name); if (found) return found; throw new Error(`${name} is not part of berth`); };',
  },
  metafile: true,
  logLevel: 'warning',
});
await copyLicences(packagesOf(metafile.inputs));
