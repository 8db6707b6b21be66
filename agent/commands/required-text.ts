import type { PatternToken } from './pattern-tokens.ts';

/** Shorter texts are in nearly every file. */
const BYTES_MIN = 3;
const CHARACTERS_MAX = 64;

/** Whether the element that a repetition follows may be left out: `b` in `b*`, and in `b+?`. */
function isOptional(tokens: readonly PatternToken[], at: number): boolean {
  for (let index = at + 1; ; index += 1) {
    const token = tokens[index];
    if (token?.kind !== 'repeat') return false;
    if (token.repetition.min === 0) return true;
  }
}

/** Half a surrogate pair is U+FFFD to the engines, and could become a pair with another half. */
const isUnclear = (token: PatternToken): boolean =>
  token.kind === 'gnu' || (token.kind === 'character' && !token.character.isWellFormed());

/** Texts that each match has, in the order of the pattern: runs of characters outside of groups. */
function runsOf(tokens: readonly PatternToken[]): string[] {
  const runs: string[] = [''];
  let depth = 0;
  for (const [index, token] of tokens.entries()) {
    if (token.kind === 'open') depth += 1;
    if (token.kind === 'close') depth = Math.max(0, depth - 1);
    const isRepeated = tokens[index + 1]?.kind === 'repeat';
    if (depth === 0 && token.kind === 'character' && !isOptional(tokens, index)) {
      runs[runs.length - 1] += token.character;
      if (isRepeated) runs.push(token.character); // The last repetition is before what follows.
    } else if (token.kind !== 'repeat') {
      runs.push('');
    }
  }
  return runs;
}

/**
 * A text that every match of a pattern contains, as long as there is one.
 * @param tokens of one line of the pattern; its case counts
 * @returns an empty text when none is certain
 */
export function requiredText(tokens: readonly PatternToken[]): string {
  // GNU grep judges what this code cannot.
  if (tokens.some(isUnclear)) return '';
  let depth = 0;
  for (const { kind } of tokens) {
    if (kind === 'open') depth += 1;
    if (kind === 'close') depth = Math.max(0, depth - 1);
    if (kind === 'or' && depth === 0) return ''; // Alternatives have no text in common.
  }
  const longest = runsOf(tokens).reduce((a, b) => (b.length > a.length ? b : a), '');
  const text = Array.from(longest).slice(0, CHARACTERS_MAX).join('');
  return Buffer.byteLength(text) < BYTES_MIN ? '' : text;
}
