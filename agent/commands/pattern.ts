import { AppError } from '../../shared/errors.ts';
import { KiB } from '../../shared/units.ts';
import { translateBracket } from './pattern-brackets.ts';
import { type PatternToken, type Repetition, tokenize } from './pattern-tokens.ts';
import { requiredText } from './required-text.ts';

/** A pattern of GNU `grep -E` as the search program takes it. */
export interface SearchPattern {
  /** For ripgrep's engine; undefined when that cannot express it exactly. */
  readonly rg: string | undefined;
  /** The same for GNU grep's engine. */
  readonly gnu: string;
  readonly ignoresCase: boolean;
  /** A text that every match contains; empty: none is known. */
  readonly required: string;
  /** Whether the required text is the whole pattern: a line matches when it contains that text. */
  readonly isText: boolean;
  /** An engine may refuse it. */
  readonly needsTrial: boolean;
}

// Beyond these GNU grep's engine is used. ripgrep's refuses very large patterns itself.
const REPETITION_MAX = 1000;
const REPEATS_IN_A_ROW_MAX = 4;
const NESTING_MAX = 50;
// Plain text up to this length is accepted by each engine.
const PLAIN_LENGTH_MAX = 1000;
// Linux limits one argument of a program to 128 KiB with its NUL (MAX_ARG_STRLEN).
const ARGUMENT_BYTES_MAX = 128 * KiB - 1;

/** Escapes of character classes, as bracket expressions that both engines read alike. */
const classes: ReadonlyMap<string, string> = new Map([
  ['w', '[_[:alnum:]]'],
  ['W', '[^_[:alnum:]]'],
  ['s', '[[:space:]]'],
  ['S', '[^[:space:]]'],
  ['d', '[0-9]'],
  ['D', '[^0-9]'],
]);

const escape = (character: string, special: RegExp): string =>
  special.test(character) ? `\\${character}` : character;

function renderForGnu(token: PatternToken): string {
  switch (token.kind) {
    case 'character':
      return token.isEscaped ? escape(token.character, /[\\.[*^$()+?{}|]/u) : token.character;
    case 'class':
      return classes.get(token.letter) ?? '';
    case 'any':
      return '.';
    case 'start':
      return '^';
    case 'end':
      return '$';
    case 'or':
      return '|';
    case 'open':
      return '(';
    case 'close':
      return ')';
    case 'empty':
      return '';
    default:
      return token.source;
  }
}

/** Builds the pattern for ripgrep's engine; the methods return false for what it cannot express. */
class RgPattern {
  /** Finished text of each open group, the pattern itself first. */
  readonly #open: string[] = [''];
  /** The last element, which a repetition would repeat; empty: there is none. */
  #atom = '';
  #repeats = 0;
  #isBranchStart = true;
  /** After `$`. */
  #isAtEnd = false;
  get text(): string | undefined {
    return this.#open.length === 1 ? `${this.#open[0]}${this.#atom}` : undefined;
  }

  add(token: PatternToken): boolean {
    switch (token.kind) {
      case 'character':
        return this.#put(escape(token.character, /[\\.+*?()|[\]{}^$]/u));
      case 'class':
        return this.#put(translateBracket(classes.get(token.letter) ?? ''));
      case 'bracket':
        return this.#put(translateBracket(token.source));
      case 'repeat':
        return this.#repeat(token.repetition);
      case 'any':
        return this.#put('.');
      case 'empty':
        return this.#put('');
      case 'start':
        return this.#isBranchStart && this.#put('^');
      case 'end':
        return this.#put('$') && (this.#isAtEnd = true);
      case 'or':
        this.#isAtEnd = false;
        return this.#put('|') && (this.#isBranchStart = true);
      case 'open':
        return this.#enter();
      case 'close':
        return this.#leave();
      default:
        return false;
    }
  }

  #put(atom: string | undefined): boolean {
    // An anchor inside a branch, as in `a$^b`, is GNU grep's engine's to judge.
    if (atom === undefined || this.#isAtEnd) return false;
    this.#isBranchStart = false;
    this.#open[this.#open.length - 1] += this.#atom;
    this.#atom = atom;
    this.#repeats = 0;
    return true;
  }

  #repeat({ min, max }: Repetition): boolean {
    this.#repeats += 1;
    const most = max ?? min;
    if (this.#repeats > REPEATS_IN_A_ROW_MAX || most > REPETITION_MAX || most < min) return false;
    // A second repetition would otherwise mean a lazy one.
    const atom = this.#repeats === 1 ? this.#atom : `(?:${this.#atom})`;
    this.#atom = `${atom}{${min},${max ?? ''}}`;
    return true;
  }

  #enter(): boolean {
    if (!this.#put('')) return false;
    this.#open.push('');
    this.#isBranchStart = true;
    return this.#open.length <= NESTING_MAX;
  }

  #leave(): boolean {
    // GNU grep takes a parenthesis that closes nothing for a literal one.
    if (this.#open.length === 1) return false;
    this.#atom = `(?:${this.#open.pop()}${this.#atom})`;
    this.#repeats = 0;
    return true;
  }
}

const isArgument = (text: string): boolean => Buffer.byteLength(text) <= ARGUMENT_BYTES_MAX;

function translate(tokens: readonly PatternToken[]): string | undefined {
  const pattern = new RgPattern();
  return tokens.every((token) => pattern.add(token)) ? pattern.text : undefined;
}

/** The text that these elements stand for; undefined when they are not all characters. */
function plainText(tokens: readonly PatternToken[]): string | undefined {
  const characters = tokens.map((token) => (token.kind === 'character' ? token.character : ''));
  return characters.includes('') ? undefined : characters.join('');
}

/**
 * Reads a pattern of GNU `grep -E` (docs/api.md, Grep). Its lines are alternatives, as for grep.
 * Text that is not a valid pattern is for GNU grep's engine, which says what is wrong with it.
 * @throws AppError `bad_request` for what GNU grep would only warn of
 */
export function readPattern(source: string): SearchPattern {
  const ignoresCase = source.startsWith('(?i)');
  const lines = (ignoresCase ? source.slice('(?i)'.length) : source).split('\n').map(tokenize);
  const translated = lines.map(translate);
  const isExpressible = translated.every((line) => line !== undefined);
  const rg = `${ignoresCase ? '(?i)' : ''}${translated.map((line) => `(?:${line})`).join('|')}`;
  const gnu = lines.map((tokens) => tokens.map(renderForGnu).join('')).join('\n');
  if (!isArgument(gnu)) throw new AppError('bad_request', 'pattern is too long; shorten it');
  const [only = [], second] = lines;
  const isPlain = lines.flat().every(({ kind }) => kind === 'character');
  const required = ignoresCase || second !== undefined ? '' : requiredText(only);
  return {
    rg: isExpressible && isArgument(rg) ? rg : undefined,
    gnu,
    ignoresCase,
    required,
    isText: required !== '' && required === plainText(only),
    needsTrial: !isPlain || source.length > PLAIN_LENGTH_MAX,
  };
}
