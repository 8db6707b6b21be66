import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseEnv } from 'node:util';
import { Berth } from '@berth/sdk';
import { Failure, NotFoundFailure } from './failure.ts';
import { loadNetwork } from './net/network.ts';
import { Output } from './output.ts';
import { type Profile, readProfiles } from './profiles.ts';

/** Options of every command. */
export interface CommonOptions {
  readonly json?: true | undefined;
  readonly quiet?: true | undefined;
  readonly profile?: string | undefined;
}

/** A server, who calls it, and where that was found: for those who ask why it is this one. */
export interface Login extends Profile {
  readonly source: string;
  /** The object API at a host's own address, where it is known. */
  readonly objectsUrl?: string | undefined;
}

/** The checkout that this program is part of; undefined for an installed package. */
export function checkout(): string | undefined {
  const root = join(import.meta.dirname, '../../..');
  return existsSync(join(root, 'scripts/up')) ? root : undefined;
}

/** The login that ./scripts/up wrote for clients on this computer. */
async function localLogin(): Promise<Login | undefined> {
  const root = checkout();
  if (root === undefined) return undefined;
  const path = join(root, '.local/env');
  const { BASE_URL, API_KEY, S3_URL } = parseEnv(await readFile(path, 'utf8').catch(() => ''));
  if (BASE_URL === undefined || API_KEY === undefined) return undefined;
  return { url: BASE_URL, apiKey: API_KEY, objectsUrl: S3_URL, source: path };
}

function environmentLogin(): Login | undefined {
  const { BERTH_URL: url, BERTH_API_KEY: apiKey } = process.env;
  if (url === undefined && apiKey === undefined) return undefined;
  if (url !== undefined && apiKey !== undefined) {
    return { url, apiKey, source: 'BERTH_URL and BERTH_API_KEY' };
  }
  const missing = url === undefined ? 'BERTH_URL' : 'BERTH_API_KEY';
  throw new Failure(`${missing} is not set`, 'set it too, or unset the other one');
}

/**
 * The credentials of a command: the profile that is named; else the environment; else the current
 * profile; else the stack of this checkout.
 * @throws Failure when there is none
 */
export async function findLogin(named: string | undefined): Promise<Login> {
  if (named === undefined) {
    const login = environmentLogin();
    if (login !== undefined) return login;
  }
  const { current, profiles } = await readProfiles();
  const asked = named ?? process.env['BERTH_PROFILE'];
  const name = asked ?? current;
  if (name !== undefined) {
    const profile = Object.hasOwn(profiles, name) ? profiles[name] : undefined;
    if (profile !== undefined) return { ...profile, source: `profile ${name}` };
    throw new NotFoundFailure(`there is no profile ${name}`, 'see berth profile ls');
  }
  const local = await localLogin();
  if (local !== undefined) return local;
  throw new Failure('no server is configured', 'run berth login');
}

/** @throws Failure when no server is configured, or its URL is none */
async function connect(named: string | undefined, hasSessions: boolean): Promise<Berth> {
  const { url, apiKey } = await findLogin(named);
  if (URL.canParse(url)) {
    return new Berth({ baseUrl: url, apiKey, ...(await loadNetwork(hasSessions)) });
  }
  throw new Failure(`${url} is not a URL`, 'berth login sets another one');
}

/** The connection and output that a command works with. */
export interface Opened {
  readonly berth: Berth;
  readonly output: Output;
}

/** @throws Failure when no server is configured */
export async function opened(options: CommonOptions): Promise<Opened> {
  return { output: new Output(options), berth: await connect(options.profile, false) };
}

/** For commands that open process connections. @throws Failure when no server is configured */
export async function openedForSessions(options: CommonOptions): Promise<Opened> {
  return { output: new Output(options), berth: await connect(options.profile, true) };
}
