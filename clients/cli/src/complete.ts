/*
 * Answers the shells' completion scripts: `berth __complete -- <words>`, the last of them
 * unfinished.
 */
import type { CommandUnknownOpts, Option } from '@commander-js/extra-typings';
import { Berth } from '@berth/sdk';
import { findLogin } from './context.ts';
import { findDisk } from './find.ts';
import { loadNetwork } from './net/network.ts';
import { readProfiles } from './profiles.ts';
import { parsePlace } from './transfer/place.ts';
import { commandTree, inList } from './tree.ts';
import { visible } from './text.ts';

interface Candidate {
  readonly value: string;
  readonly description?: string;
}

/** The shell is to complete names of local files. */
const FILES = ':files';
/** Nobody waits longer for a completion. */
const PATIENCE_MS = 2_000;

/** Where on the command line the unfinished word is. */
interface Position {
  readonly command: CommandUnknownOpts;
  /** The option whose value it is. */
  readonly option: Option | undefined;
  /** Which argument it would be otherwise. */
  readonly index: number;
}

function locate(root: CommandUnknownOpts, words: readonly string[]): Position {
  let command = root;
  let index = 0;
  let option: Option | undefined;
  for (const word of words) {
    if (option !== undefined) {
      option = undefined;
      continue;
    }
    if (word.startsWith('-')) {
      const found = command.options.find(({ long, short }) => word === long || word === short);
      option = found?.required === true ? found : undefined;
      continue;
    }
    const next = command.commands.find((each) => each.name() === word);
    if (next === undefined) index += 1;
    else command = next;
  }
  return { command, option, index };
}

const options = (command: CommandUnknownOpts): Candidate[] =>
  command.options
    .filter(({ hidden }) => !hidden)
    .map(({ long, short, description }) => ({ value: long ?? short ?? '', description }));

const subcommands = (command: CommandUnknownOpts): Candidate[] =>
  command.commands.map((each) => ({ value: each.name(), description: inList(each) }));

async function client(): Promise<Berth> {
  const { url, apiKey } = await findLogin(undefined);
  const network = await loadNetwork(false);
  return new Berth({ baseUrl: url, apiKey, timeoutMs: PATIENCE_MS, retries: 0, ...network });
}

async function sandboxes(suffix = ''): Promise<Candidate[]> {
  const all = await (await client()).sandboxes.list();
  return all.map(({ name, status }) => ({ value: name + suffix, description: status }));
}

async function disks(suffix = ''): Promise<Candidate[]> {
  const all = await (await client()).disks.list().toArray();
  return all.map(({ name, id }) => ({ value: name + suffix, description: id }));
}

/** `disk:path`, as far as it is written. */
async function diskPaths(word: string): Promise<Candidate[]> {
  const place = parsePlace(word);
  if (place.kind !== 'remote') return disks(':');
  const disk = await findDisk(await client(), place.name);
  const directory = place.path.slice(0, place.path.lastIndexOf('/') + 1);
  const files = await disk.files.list(directory).toArray();
  const slash = place.path.startsWith('/') ? '/' : '';
  return files.map(({ path, type }) => ({
    value: `${place.name}:${slash}${path}${type === 'directory' ? '/' : ''}`,
  }));
}

async function profiles(): Promise<Candidate[]> {
  return Object.keys((await readProfiles()).profiles).map((value) => ({ value }));
}

const words = (...values: string[]): Candidate[] => values.map((value) => ({ value }));

/** Values of an argument or an option, by its name in the help. */
async function valuesOf(name: string, group: string, word: string): Promise<Candidate[]> {
  switch (name) {
    case 'sandbox':
    case 'sandboxes':
    case 'words':
      return sandboxes();
    case 'disk':
    case 'disks':
      return disks();
    case 'disk:path':
      return diskPaths(word);
    case 'source':
    case 'target': {
      if (group === 'image') return [];
      const remote = group === 'disk' ? await diskPaths(word) : await sandboxes(':');
      return word.includes(':') ? remote : [...remote, { value: FILES }];
    }
    case 'shell':
      return words('bash', 'zsh', 'fish');
    case 'profile':
      return profiles();
    case 'status':
      return words('running', 'paused', 'stopped', 'exited', 'failed');
    case 'name':
      return group === 'profile' ? profiles() : [];
    case 'file':
      return words(FILES);
    default:
      return [];
  }
}

async function candidates(root: CommandUnknownOpts, all: readonly string[]): Promise<Candidate[]> {
  const word = all.at(-1) ?? '';
  const { command, option, index } = locate(root, all.slice(0, -1));
  const group = all[0] ?? '';
  if (option !== undefined) {
    const [, value = ''] = /<([^>]+)>/u.exec(option.flags) ?? [];
    const name = option.long === '--profile' ? 'profile' : value;
    return valuesOf(name, group, word);
  }
  if (word.startsWith('-')) return options(command);
  if (command.commands.length > 0) return subcommands(command);
  const declared = command.registeredArguments;
  const last = declared.at(-1);
  const argument = declared[index] ?? (last?.variadic === true ? last : undefined);
  // Behind the name of a sandbox or disk come the words of a command.
  if (argument === undefined || (argument.name() === 'words' && index > 0)) return [];
  return valuesOf(argument.name(), group, word);
}

/** Prints what the last word may become, one candidate a line, with a description after a tab. */
export async function complete(all: readonly string[]): Promise<void> {
  const word = all.at(-1) ?? '';
  const root = await commandTree(all.length > 1 ? (all[0] ?? '') : '');
  const found = await candidates(root, all).catch(() => []); // A completion reports no errors.
  const lines = found
    .filter(({ value }) => value === FILES || value.startsWith(word))
    .filter(({ value }) => visible(value) === value)
    .map(({ value, description }) =>
      description === undefined || description === '' ? value : `${value}\t${description}`,
    );
  process.stdout.write(lines.map((line) => `${line}\n`).join(''));
}
