import { chmod, mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { Failure } from './failure.ts';

/** A server and who calls it. */
export interface Profile {
  readonly url: string;
  readonly apiKey: string;
}

/** The file that keeps the profiles of all `berth login`s. */
export interface ProfileFile {
  /** The profile that is used when none is named. */
  readonly current?: string;
  readonly profiles: Readonly<Record<string, Profile>>;
}

/** A directory for this user alone. */
export const configDirectory = (): string =>
  join(process.env['XDG_CONFIG_HOME'] || join(homedir(), '.config'), 'berth');

/** Where they are kept: readable by their user alone, because of the keys. */
export const profilePath = (): string => join(configDirectory(), 'profiles.json');

const isProfile = (value: unknown): value is Profile =>
  typeof value === 'object' &&
  value !== null &&
  typeof Reflect.get(value, 'url') === 'string' &&
  typeof Reflect.get(value, 'apiKey') === 'string';

function parse(text: string): ProfileFile | undefined {
  try {
    const { current, profiles } = JSON.parse(text) as Partial<ProfileFile>;
    const all = Object.values(profiles ?? {});
    if (profiles === undefined || !all.every((each) => isProfile(each))) return undefined;
    return typeof current === 'string' ? { current, profiles } : { profiles };
  } catch {
    return undefined;
  }
}

/** @throws Failure when the file cannot be understood */
export async function readProfiles(): Promise<ProfileFile> {
  let text;
  try {
    text = await readFile(profilePath(), 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { profiles: {} };
    throw error;
  }
  const file = parse(text);
  if (file !== undefined) return file;
  const next = 'move it away and run berth login';
  throw new Failure(`${profilePath()} is not a file of profiles`, next);
}

/** Replaces the file in one step. */
export async function writeProfiles(file: ProfileFile): Promise<void> {
  await mkdir(configDirectory(), { recursive: true, mode: 0o700 });
  const temporary = `${profilePath()}.${process.pid}`;
  await writeFile(temporary, `${JSON.stringify(file, null, 2)}\n`, { mode: 0o600, flush: true });
  await chmod(temporary, 0o600); // Replaces any earlier file of this name.
  await rename(temporary, profilePath());
}
