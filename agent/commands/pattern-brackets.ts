/**
 * The POSIX classes as GNU grep has them in the locale C.UTF-8, in the syntax of ripgrep's engine;
 * equal for every character of Unicode 15.
 */
const SPACES = String.raw`[\t\n\x0B\x0C\r\p{Z}--[\u{A0}\u{2007}\u{202F}]]`;
const ALNUM = String.raw`[\p{Alphabetic}\p{Nd}]`;
const PRINT = String.raw`[^\p{Cn}\p{Cc}\p{Zl}\p{Zp}]`;
const GRAPH = `[${PRINT}--${SPACES}]`;
const classes: ReadonlyMap<string, string> = new Map([
  ['alnum', ALNUM],
  ['alpha', `[${ALNUM}--[0-9]]`],
  ['blank', String.raw`[\t\p{Zs}--[\u{A0}\u{2007}\u{202F}]]`],
  ['cntrl', String.raw`[\p{Cc}\p{Zl}\p{Zp}]`],
  ['digit', '[0-9]'],
  ['graph', GRAPH],
  ['lower', String.raw`[\p{Lowercase}\u{1C5}\u{1C8}\u{1CB}\u{1F2}]`],
  ['print', PRINT],
  ['punct', `[${GRAPH}--${ALNUM}]`],
  ['space', SPACES],
  ['upper', String.raw`[\p{Uppercase}\p{Lt}]`],
  ['xdigit', '[0-9A-Fa-f]'],
]);

const escape = (character: string): string =>
  /[[\]\\^&~-]/u.test(character) ? `\\${character}` : character;

/**
 * Translates an element of a bracket expression; undefined when only GNU grep knows its meaning.
 */
function translateElement(element: RegExpExecArray): string | undefined {
  const { name, from, to, single } = element.groups ?? {};
  if (name !== undefined) return classes.get(name);
  if (from !== undefined && to !== undefined) {
    const isOrdered = (from.codePointAt(0) ?? 0) <= (to.codePointAt(0) ?? 0);
    return isOrdered ? `${escape(from)}-${escape(to)}` : undefined;
  }
  return single === undefined ? undefined : escape(single);
}

// A hyphen is literal only at an end of the list; after a range it may not start another one.
const ELEMENT =
  /\[:(?<name>[a-z]+):\]|(?<from>[^[-])-(?<to>[^[\]])(?!-[^\]])|(?<single>[^[-](?!-.)|^-|-$)/uy;

/**
 * Translates a bracket expression.
 * @param source from `[` to `]`; a backslash in it is a literal
 * @returns a class of ripgrep's engine; undefined for what only GNU grep's engine has or judges,
 * for example equivalence classes and ranges that end before they begin
 */
export function translateBracket(source: string): string | undefined {
  const { negation, list } = /^\[(?<negation>\^?)(?<list>.+)\]$/su.exec(source)?.groups ?? {};
  // `[:space:]` without its outer brackets is a common mistake, which GNU grep explains.
  if (negation === undefined || list === undefined || /^:.*:$/su.test(list)) return undefined;
  let translated = '';
  const element = new RegExp(ELEMENT);
  for (let at = 0; at < list.length; at = element.lastIndex) {
    element.lastIndex = at;
    const found = element.exec(list);
    const text = found === null ? undefined : translateElement(found);
    if (text === undefined) return undefined;
    translated += text;
  }
  return `[${negation}${translated}]`;
}
