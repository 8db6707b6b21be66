import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import Type from 'typebox';
import { errnoOf } from '../../../shared/errors.ts';
import { compile } from '../../../shared/validate.ts';
import { templateOf } from '../memory/checkpoint.ts';
import { parseJson } from '../../../shared/json.ts';

/**
 * Where a sandbox keeps what; `run` only lasts as long as its machine, `checkpoint` while it is
 * paused, `merge` while layers of its disk are merged.
 */
export const machinePaths = (directory: string) =>
  ({
    run: join(directory, 'run'),
    merge: join(directory, 'merge'),
    disks: join(directory, 'disks'),
    checkpoint: join(directory, 'checkpoint'),
  }) as const;

/** What a machine began as, for an agent that takes it over. */
const MEMORY_FILE = 'memory.json';
const Memory = Type.Object({ template: Type.String({ pattern: '^[0-9a-f]{64}$' }) });
const parseMemory = compile(Memory);

/** Remembers the template of a machine that was just started. */
export const writeMemory = (runDir: string, template: string): Promise<void> =>
  writeFile(join(runDir, MEMORY_FILE), JSON.stringify({ template }));

/** The key of the template that a machine began with. @throws Error when it is not known */
export async function readMemory(runDir: string): Promise<string> {
  const text = await readFile(join(runDir, MEMORY_FILE), 'utf8');
  return parseMemory(parseJson(text), MEMORY_FILE).template;
}

/** The keys of all templates that checkpoints, or machines that may run, stand on. */
export async function neededTemplates(sandboxesDir: string): Promise<ReadonlySet<string>> {
  const keys = new Set<string>();
  for (const name of await listNames(sandboxesDir)) {
    const { checkpoint, run } = machinePaths(join(sandboxesDir, name));
    for (const found of await Promise.allSettled([templateOf(checkpoint), readMemory(run)])) {
      if (found.status === 'fulfilled' && found.value !== undefined) keys.add(found.value);
    }
  }
  return keys;
}

/** What is in a directory; nothing when it is not there. */
export async function listNames(path: string): Promise<string[]> {
  try {
    return await readdir(path);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return [];
    throw error;
  }
}
