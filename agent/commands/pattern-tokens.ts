import { AppError } from '../../shared/errors.ts';

/** A repetition: at least `min` times, at most `max` times, which is undefined for any number. */
export interface Repetition {
  readonly min: number;
  readonly max: number | undefined;
}

/** An element of a POSIX extended regular expression as GNU grep reads it. */
export type PatternToken =
  /** Escaped: there was a backslash before it. */
  | { readonly kind: 'character'; readonly character: string; readonly isEscaped: boolean }
  | { readonly kind: 'any' | 'empty' | 'start' | 'end' | 'or' | 'open' | 'close' }
  /** `\\< \\> \\b \\B`, and the start and end of the text, which GNU grep's engine alone has. */
  | { readonly kind: 'boundary'; readonly source: string }
  | { readonly kind: 'repeat'; readonly repetition: Repetition; readonly source: string }
  /** The source from `[` to `]`, or to the end of the pattern when it is not closed. */
  | { readonly kind: 'bracket'; readonly source: string }
  /** `\w \W \s \S`, and Perl's `\d \D` (docs/api.md, Grep). */
  | { readonly kind: 'class'; readonly letter: string }
  /** GNU grep's engine alone has it, or says what is wrong with it. */
  | { readonly kind: 'gnu'; readonly source: string };

const simple: ReadonlyMap<string, PatternToken> = new Map([
  ['.', { kind: 'any' }],
  ['^', { kind: 'start' }],
  ['$', { kind: 'end' }],
  ['|', { kind: 'or' }],
  ['(', { kind: 'open' }],
  [')', { kind: 'close' }],
  ['*', { kind: 'repeat', repetition: { min: 0, max: undefined }, source: '*' }],
  ['+', { kind: 'repeat', repetition: { min: 1, max: undefined }, source: '+' }],
  ['?', { kind: 'repeat', repetition: { min: 0, max: 1 }, source: '?' }],
]);

/** Reads the bracket expression that begins at an index; inside it a backslash is a literal. */
function bracketAt(line: string, at: number): string {
  const start = /^\[\^?\]?/u.exec(line.slice(at))?.[0].length ?? 1;
  for (let index = at + start; index < line.length; index += 1) {
    const character = line[index];
    if (character === ']') return line.slice(at, index + 1);
    const kind = line[index + 1] ?? '';
    if (character !== '[' || !':.='.includes(kind)) continue;
    const end = line.indexOf(`${kind}]`, index + 2);
    if (end === -1) break;
    index = end + 1;
  }
  return line.slice(at);
}

function readInterval(text: string): PatternToken | undefined {
  const [source, min = '', comma, max = ''] = /^\{(\d{0,9})(,?)(\d{0,9})\}/u.exec(text) ?? [];
  if (source === undefined || source === '{}') return undefined;
  const least = Number(min);
  const most = comma === '' ? least : max === '' ? undefined : Number(max);
  return { kind: 'repeat', repetition: { min: least, max: most }, source };
}

const refused = (why: string): AppError => new AppError('bad_request', `pattern: ${why}`);

function readEscape(character: string | undefined): PatternToken {
  if (character === undefined) return { kind: 'gnu', source: '\\' };
  if (/^[wWsSdD]$/u.test(character)) return { kind: 'class', letter: character };
  if (/^[<>bB`']$/u.test(character)) return { kind: 'boundary', source: `\\${character}` };
  if (/^[1-9]$/u.test(character)) return { kind: 'gnu', source: `\\${character}` };
  if (character === 't') return { kind: 'character', character: '\t', isEscaped: false };
  if (/^[a-zA-Z0]$/u.test(character)) {
    throw refused(`grep -E gives \\${character} no meaning; remove the backslash for the letter`);
  }
  return { kind: 'character', character, isEscaped: true };
}

/**
 * Reads the token at an index.
 * @returns the token and where the next one begins
 */
function tokenAt(line: string, at: number): readonly [PatternToken, number] {
  const character = String.fromCodePoint(line.codePointAt(at) ?? 0);
  const next = at + character.length;
  if (character === '\\') {
    const code = line.codePointAt(next);
    const escaped = code === undefined ? undefined : String.fromCodePoint(code);
    return [readEscape(escaped), next + (escaped?.length ?? 0)];
  }
  if (character === '[') {
    const source = bracketAt(line, at);
    return [{ kind: 'bracket', source }, at + source.length];
  }
  if (character === '{') {
    const interval = readInterval(line.slice(at, at + 24));
    if (interval?.kind === 'repeat') return [interval, at + interval.source.length];
    // Whether a malformed interval is an error or literal text, GNU grep decides.
    if (/[\d,}]/u.test(line[next] ?? '')) return [{ kind: 'gnu', source: '{' }, next];
    return [{ kind: 'character', character, isEscaped: true }, next];
  }
  if (character === '(' && line[next] === '?') {
    throw refused('grep -E has no (?…); only (?i) at the start is understood, which ignores case');
  }
  return [simple.get(character) ?? { kind: 'character', character, isEscaped: false }, next];
}

/**
 * Adds a token. Repetitions of nothing and of anchors, which GNU grep accepts with a warning, are
 * replaced by what they mean: a repetition of nothing is empty, and so is an optional anchor or
 * boundary.
 */
function addToken(tokens: PatternToken[], token: PatternToken): void {
  const last = tokens.at(-1);
  if (token.kind !== 'repeat') {
    tokens.push(token);
  } else if (last !== undefined && ['start', 'end', 'boundary'].includes(last.kind)) {
    if (token.repetition.min === 0) tokens[tokens.length - 1] = { kind: 'empty' };
  } else if (last !== undefined && !['empty', 'or', 'open'].includes(last.kind)) {
    tokens.push(token);
  }
}

/**
 * Splits one line of a pattern into its elements.
 * @throws AppError `bad_request` for what GNU grep would only warn of, and search for something
 *   else
 */
export function tokenize(line: string): PatternToken[] {
  const tokens: PatternToken[] = [];
  for (let at = 0; at < line.length;) {
    const [token, next] = tokenAt(line, at);
    addToken(tokens, token);
    at = next;
  }
  return tokens;
}
