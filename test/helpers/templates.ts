import { mkdir } from 'node:fs/promises';
import { dirname } from 'node:path';
import { run } from '../../agent/system/spawn.ts';

/** Copies templates of machines; most of their memory is holes, which stay holes. */
export async function copyTemplates(from: string, to: string): Promise<void> {
  await mkdir(dirname(to), { recursive: true, mode: 0o700 });
  await run('cp', ['--archive', '--sparse=always', '--no-target-directory', from, to]);
}

/**
 * Gives a host the templates that `test/build-templates.ts` made, so that its first machine of a
 * usual shape need not boot. Without them (`TEMPLATES_DIR` is not set) the host makes its own.
 * @param directory where the host keeps its templates
 */
export async function provideTemplates(directory: string): Promise<void> {
  const { TEMPLATES_DIR } = process.env;
  if (TEMPLATES_DIR !== undefined) await copyTemplates(TEMPLATES_DIR, directory);
}
