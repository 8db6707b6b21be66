/* Runs one benchmark: `node bench/one.ts NAME [flags]`. `bench/main.ts` starts and watches it. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { paths } from '../scripts/local-paths.ts';
import { runToEnd } from './ending.ts';
import { subjects } from './subjects.ts';

/** @returns the path that a script prints of what it makes, or made before */
async function made(script: string): Promise<string> {
  const child = spawn(join(paths.root, 'scripts', script), {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit') as Promise<[number | null]>;
  const [path, [code]] = await Promise.all([text(child.stdout), exited]);
  if (code !== 0) throw new Error(`scripts/${script} failed: run ./scripts/setup`);
  return path.trim();
}

/** Sets what stacks and baselines are started from, where it is not set. */
async function provideParts(): Promise<void> {
  const { env } = process;
  const image = (env['DEFAULT_IMAGE_DIR'] ??= await made('build-image'));
  env['DEFAULT_ROOT_DISK'] ??= join(dirname(image), 'root.ext4');
  env['GUEST_DIR'] ??= await made('build-guest');
  delete env['TEMPLATES_DIR']; // Hosts make their own, as everywhere but in tests.
}

const [name = '', ...args] = process.argv.slice(2);
await runToEnd(async () => {
  await provideParts();
  await subjects[name]?.(args);
});
