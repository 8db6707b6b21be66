import { readFile, rename, rm, writeFile } from 'node:fs/promises';
import { parseEnv } from 'node:util';

export type Env = Readonly<Record<string, string>>;

/** Reads a file of KEY=value lines, as a shell would. @returns no entries if there is no file */
export async function readEnvFile(path: string): Promise<Env> {
  const text = await readFileIfExists(path);
  return Object.fromEntries(
    Object.entries(parseEnv(text ?? '')).flatMap(([key, value]) =>
      value === undefined ? [] : [[key, value]],
    ),
  );
}

export async function writeEnvFile(path: string, env: Env): Promise<void> {
  const lines = Object.entries(env).map(([key, value]) => `${key}=${quote(key, value)}\n`);
  await writePrivateFile(path, lines.join(''));
}

/** {@link replaceFile} with a file that its owner alone may read. */
export const writePrivateFile = (path: string, text: string): Promise<void> =>
  replaceFile(path, text, 0o600);

/** Replaces the file atomically, and only when its text differs. */
export async function replaceFile(path: string, text: string, mode = 0o644): Promise<void> {
  if ((await readFileIfExists(path)) === text) return;
  const temporary = `${path}.${process.pid}`;
  try {
    await writeFile(temporary, text, { mode, flush: true });
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

/** @throws Error naming `key` when it is not set. */
export function required(env: Env, key: string): string {
  const value = env[key];
  if (value === undefined || value === '') throw new Error(`${key} is not set`);
  return value;
}

export async function readFileIfExists(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
    throw error;
  }
}

// A shell and Node read a single-quoted value alike as long as it contains no quote.
function quote(key: string, value: string): string {
  if (/^[\w@%+=:,./-]*$/u.test(value)) return value;
  if (/['\n]/u.test(value)) throw new Error(`${key} may not contain quotes or line feeds`);
  return `'${value}'`;
}
