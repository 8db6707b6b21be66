import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { toError } from '../../shared/errors.ts';
import { parseJson } from '../../shared/json.ts';
import type { Logger } from '../../shared/log.ts';
import { SandboxImage } from '../../shared/schemas/sandbox-image.ts';
import { compile } from '../../shared/validate.ts';

const check = compile(SandboxImage);

/**
 * Reads an image's description of itself, `image.json` beside it.
 * @param path of the image's root directory or root disk
 * @returns undefined when there is no valid description; nothing is guessed then
 */
export async function readImage(path: string, log: Logger): Promise<SandboxImage | undefined> {
  const file = join(dirname(path), 'image.json');
  try {
    const image = check(parseJson(await readFile(file, 'utf8')), 'image');
    const { name, version, codename, key } = image;
    return { name, version, ...(codename === undefined ? {} : { codename }), key };
  } catch (error) {
    log.warn({ file, err: toError(error) }, 'image:readFailed');
    return undefined;
  }
}
