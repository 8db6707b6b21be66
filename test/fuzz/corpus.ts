import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../../shared/errors.ts';
import type { Target } from './target.ts';

const directoryOf = (target: Target): string =>
  new URL(`corpus/${target.name}`, import.meta.url).pathname;

/** A target's corpus, one file per input, or its seeds before the first run. */
export async function readCorpus(target: Target): Promise<Buffer[]> {
  const directory = directoryOf(target);
  const seeds = target.seeds.map((seed) => Buffer.from(seed));
  try {
    const names = (await readdir(directory)).sort();
    const kept = await Promise.all(names.map((name) => readFile(join(directory, name))));
    return [...seeds, ...kept];
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return seeds;
    throw error;
  }
}

/** @returns the path of the file */
export async function keepInput(
  target: Target,
  kind: 'input' | 'failure',
  input: Buffer,
): Promise<string> {
  const directory = directoryOf(target);
  await mkdir(directory, { recursive: true });
  const digest = createHash('sha256').update(input).digest('hex').slice(0, 16);
  const path = join(directory, `${kind}-${digest}`);
  await writeFile(path, input);
  return path;
}
