import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';

const cache = join(process.env['BERTH_CACHE_DIR'] ?? '/var/cache/berth', 'node');

/** A release of Node beside the one that Berth runs on, installed once on this computer. */
export async function provideNode(version: string): Promise<string> {
  const name = `node-${process.platform}-${process.arch}`;
  const home = join(cache, `${version}-${process.arch}`);
  const program = join(home, 'node_modules', name, 'bin/node');
  if ((await stat(program).catch(() => undefined)) !== undefined) return program;
  await mkdir(dirname(home), { recursive: true });
  const made = await mkdtemp(`${home}-`);
  const args = ['install', '--prefix', made, '--ignore-scripts', '--no-save', `${name}@${version}`];
  await promisify(execFile)('npm', args);
  // Another run may have been faster.
  await rename(made, home).catch(() => rm(made, { recursive: true, force: true }));
  return program;
}
