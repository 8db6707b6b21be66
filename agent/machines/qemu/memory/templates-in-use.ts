import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import Type from 'typebox';
import { parseJson } from '../../../../shared/json.ts';
import { compile } from '../../../../shared/validate.ts';
import { listNames, machinePaths } from '../process/machine-directory.ts';
import { templateOf } from './checkpoint.ts';
import { isStorageError, type Template, TemplateError } from './template.ts';

/** Kept in a machine's run directory, so that a later agent that recovers it finds its template. */
const MEMORY_FILE = 'memory.json';
const Memory = Type.Object({
  template: Type.String({ pattern: '^[0-9a-f]{64}$' }),
  /** Absent from machines that an older agent started. */
  contents: Type.Optional(Type.String()),
});
const parseMemory = compile(Memory);

/** Records which template a machine was started from. */
export const recordTemplate = (
  runDir: string,
  { key: template, contents }: Pick<Template, 'key' | 'contents'>,
): Promise<void> => writeFile(join(runDir, MEMORY_FILE), JSON.stringify({ template, contents }));

/**
 * The template that a machine was started from.
 * @throws Error when it is not recorded
 */
async function recordedTemplate(runDir: string): Promise<Type.Static<typeof Memory>> {
  const text = await readFile(join(runDir, MEMORY_FILE), 'utf8');
  return parseMemory(parseJson(text), MEMORY_FILE);
}

/**
 * Finds the template of a machine that a former agent started: again at each call after the storage
 * did not tell. One that is missing or damaged stays lost, because another may be made in its
 * place, which has the same key and not the memory that the machine stands on.
 * @param byKey reads a template, or finds it among those that are open
 */
export function templateOfRecovered(
  runDir: string,
  byKey: (key: string) => Promise<Template>,
): () => Promise<Template> {
  let finding: Promise<Template> | undefined;
  const find = async (): Promise<Template> => {
    try {
      const { template: key, contents } = await recordedTemplate(runDir);
      const template = await byKey(key);
      if (contents === undefined || contents === template.contents) return template;
      throw new TemplateError(`the template ${key} was made anew, with other contents`);
    } catch (error) {
      if (isStorageError(error)) finding = undefined;
      throw error;
    }
  };
  return () => (finding ??= find());
}

/**
 * Keys of all templates that a checkpoint or a possibly running machine depends on.
 * @param place the directory of the host's machines
 */
export async function templatesInUse(place: string): Promise<ReadonlySet<string>> {
  const keys = new Set<string>();
  for (const name of await listNames(place)) {
    const { checkpoint, run } = machinePaths(join(place, name));
    const both = [templateOf(checkpoint), recordedTemplate(run).then(({ template }) => template)];
    for (const found of await Promise.allSettled(both)) {
      if (found.status === 'fulfilled' && found.value !== undefined) keys.add(found.value);
      // Storage that cannot be read now must not make a needed template look unneeded.
      else if (found.status === 'rejected' && isStorageError(found.reason)) throw found.reason;
    }
  }
  return keys;
}
