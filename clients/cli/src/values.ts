import { readFile } from 'node:fs/promises';
import { InvalidArgumentError } from '@commander-js/extra-typings';
import { parseBytes, parseSeconds } from './text.ts';

/* Parsers of option values; each throws what commander shows beside the option. */

const MiB = 1024 * 1024;

export function count(value: string): number {
  if (/^\d{1,9}$/u.test(value) && Number(value) > 0) return Number(value);
  throw new InvalidArgumentError('It must be a whole number of at least 1.');
}

/** @returns MiB */
export function memory(value: string): number {
  const bytes = parseBytes(/^\d+$/u.test(value) ? `${value}M` : value);
  if (bytes !== undefined && bytes >= MiB) return Math.round(bytes / MiB);
  throw new InvalidArgumentError('Write it as 512M or 2G.');
}

/** @returns seconds */
export function duration(value: string): number {
  const seconds = parseSeconds(value);
  if (seconds !== undefined) return seconds;
  throw new InvalidArgumentError('Write it as 90s, 15m or 1h30m.');
}

/** Collects `NAME=value`, or `NAME` for the value that it has here. */
export function variable(
  value: string,
  former: Readonly<Record<string, string>> = {},
): Record<string, string> {
  const at = value.indexOf('=');
  if (at === 0 || value === '') throw new InvalidArgumentError('Write it as NAME=value.');
  const name = at === -1 ? value : value.slice(0, at);
  const here = at === -1 ? process.env[name] : value.slice(at + 1);
  return here === undefined ? { ...former } : { ...former, [name]: here };
}

/** Collects the values of an option that may be given more than once. */
export const each = (value: string, former: readonly string[] = []): string[] => [...former, value];

export const eachCount = (value: string, former: readonly number[] = []): number[] => [
  ...former,
  count(value),
];

/** Without the fields that are undefined: what was not asked for is not sent. */
export function given<T extends object>(fields: T): Given<T> {
  return Object.fromEntries(
    Object.entries(fields).filter(([, value]) => value !== undefined),
  ) as Given<T>;
}

type Given<T> = {
  [K in keyof T as undefined extends T[K] ? never : K]: T[K];
} & { [K in keyof T as undefined extends T[K] ? K : never]?: Exclude<T[K], undefined> };

/** A file's text, or that of stdin for `-`. */
export async function readText(path: string): Promise<string> {
  if (path !== '-') return readFile(path, 'utf8');
  const { text } = await import('node:stream/consumers'); // Takes its time to load.
  return text(process.stdin);
}
