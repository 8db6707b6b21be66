/** Control characters, C1 among them, and those that change the direction of text (UAX 9). */
const CONTROLS = /[\p{Cc}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

const escapeOf = (character: string): string =>
  `\\u${(character.codePointAt(0) ?? 0).toString(16).padStart(4, '0')}`;

/**
 * Text of others, such as names and messages, for a terminal: control characters are shown, never
 * obeyed, since they could rewrite it.
 */
export const visible = (text: string): string =>
  text.replace(CONTROLS, (character) => ESCAPES[character] ?? escapeOf(character));

/**
 * A value as JSON that a terminal may show: `JSON.stringify` leaves C1 controls and those of
 * direction as they are.
 */
export const visibleJson = (value: unknown, indent?: number): string =>
  JSON.stringify(value, null, indent).replace(CONTROLS, (character) =>
    character === '\n' ? character : escapeOf(character),
  );

const ESCAPES: Readonly<Record<string, string>> = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** A number of bytes for people, such as `1.4 GiB`. */
export function formatBytes(bytes: number): string {
  const power = Math.min(UNITS.length - 1, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  const number = bytes / 1024 ** power;
  return `${power === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${UNITS[power] ?? ''}`;
}

/** A number of things, such as `1 file` or `2 files`. */
export const counted = (number: number, thing: string): string =>
  `${number} ${thing}${number === 1 ? '' : 's'}`;

const SECOND_MS = 1_000;
const AGES = [
  [86_400_000, 'd'],
  [3_600_000, 'h'],
  [60_000, 'min'],
  [SECOND_MS, 's'],
] as const;

/** How long ago a time of the API was, such as `3 h ago`. */
export function formatAge(time: string | undefined): string {
  if (time === undefined) return '';
  const ms = Math.max(0, Date.now() - Date.parse(time));
  const [unitMs, unit] = AGES.find(([length]) => ms >= length) ?? [SECOND_MS, 's'];
  return `${Math.floor(ms / unitMs)} ${unit} ago`;
}

const DURATION_UNITS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3_600, d: 86_400 };

/** @returns the seconds of `90`, `90s`, `5m` or `1h30m`; undefined when it is none of these */
export function parseSeconds(text: string): number | undefined {
  if (/^\d+$/u.test(text)) return Number(text);
  if (!/^(?:\d+[smhd])+$/u.test(text)) return undefined;
  let seconds = 0;
  for (const [, number, unit = ''] of text.matchAll(/(\d+)([smhd])/gu)) {
    seconds += Number(number) * (DURATION_UNITS[unit] ?? 0);
  }
  return seconds;
}

const SIZE_POWERS: Readonly<Record<string, number>> = { '': 0, k: 1, m: 2, g: 3, t: 4 };

/**
 * @returns the bytes of `512`, `512M` or `2GiB`, in powers of 1024; undefined when it is none of
 *   these
 */
export function parseBytes(text: string): number | undefined {
  const [, number, unit] = /^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$/iu.exec(text) ?? [];
  if (number === undefined || unit === undefined) return undefined;
  return Math.round(Number(number) * 1024 ** (SIZE_POWERS[unit.toLowerCase()] ?? 0));
}
