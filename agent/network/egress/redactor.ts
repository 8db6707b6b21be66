import { Transform, type TransformCallback } from 'node:stream';
import { SECRET_LENGTH_MIN } from './secret-parts.ts';

const HEAD_LENGTH = SECRET_LENGTH_MIN;
const MASK = '*'.charCodeAt(0);
/** After so long without more bytes, a short end is passed on: it may be the end of a message. */
const QUIET_MS = 100;
/**
 * A guest or server that holds the stream up within a secret shows this much of it: too little to
 * help.
 */
const SHORT_MAX = 3;

/** A text to be found. */
class Pattern {
  readonly text: string;
  #fallbacks: Uint32Array | undefined;

  constructor(text: string) {
    this.text = text;
  }

  /**
   * For each of its beginnings, the length of the longest shorter one with which that ends (Knuth,
   * Morris and Pratt, 1977). Most patterns are never met, and need none.
   */
  get fallbacks(): Uint32Array {
    this.#fallbacks ??= fallbacksOf(this.text);
    return this.#fallbacks;
  }
}

function fallbacksOf(text: string): Uint32Array {
  const fallbacks = new Uint32Array(text.length);
  for (let at = 1, matched = 0; at < text.length; at += 1) {
    while (matched > 0 && text.charCodeAt(at) !== text.charCodeAt(matched))
      matched = fallbacks[matched - 1] ?? 0;
    if (text.charCodeAt(at) === text.charCodeAt(matched)) matched += 1;
    fallbacks[at] = matched;
  }
  return fallbacks;
}

/** Finds patterns in text by their first characters. */
export interface PatternIndex {
  readonly heads: RegExp;
  readonly byHead: ReadonlyMap<string, readonly Pattern[]>;
  /** Every beginning of a head that is shorter than it. */
  readonly stubs: ReadonlySet<string>;
}

/**
 * Letters are compared without case.
 * @param patterns latin1 texts of at least {@link SECRET_LENGTH_MIN} characters
 */
export function indexPatterns(patterns: readonly string[]): PatternIndex | undefined {
  if (patterns.length === 0) return undefined;
  const texts = new Set(patterns.map((text) => text.toLowerCase()));
  const byHead = Map.groupBy(
    [...texts].map((text) => new Pattern(text)),
    ({ text }) => text.slice(0, HEAD_LENGTH),
  );
  const stubs = new Set<string>();
  for (const head of byHead.keys()) {
    for (let length = 1; length < HEAD_LENGTH; length += 1) stubs.add(head.slice(0, length));
  }
  const heads = new RegExp([...byHead.keys()].map((head) => RegExp.escape(head)).join('|'), 'g');
  return { heads, byHead, stubs };
}

/** A stretch of a text, as [from, to). */
type Mask = [from: number, to: number];

interface Findings {
  /** Where the text must be masked: in order, and apart from each other. */
  readonly masks: readonly Readonly<Mask>[];
  /**
   * Where a possible beginning of a pattern starts at the text's end; the text's end without one.
   */
  readonly openFrom: number;
}

/** The positions of a text at which patterns are. */
class Positions {
  /** For each place the end of the longest pattern there; 0: none. */
  readonly #ends: Uint32Array;

  constructor(length: number) {
    this.#ends = new Uint32Array(length);
  }

  add(from: number, to: number): void {
    this.#ends[from] = Math.max(this.#ends[from] ?? 0, to);
  }

  /** A text may have a pattern at each of its characters, so what overlaps is one mask. */
  get masks(): Mask[] {
    const masks: Mask[] = [];
    for (const [from, to] of this.#ends.entries()) {
      const last = masks.at(-1);
      if (to === 0) continue;
      if (last === undefined || from > last[1]) masks.push([from, to]);
      else last[1] = Math.max(last[1], to);
    }
    return masks;
  }
}

/**
 * Finds a pattern from a place on, for as long as one may have begun. Looks at each character once,
 * however the pattern and the text repeat themselves.
 * @returns where it has come to, and how much of the pattern the text has before that place
 */
function follow(
  { text: wanted, fallbacks }: Pattern,
  text: string,
  from: number,
  positions: Positions,
): { readonly to: number; readonly matched: number } {
  let matched = 0;
  let to = from;
  do {
    const character = text.charCodeAt(to);
    while (matched > 0 && wanted.charCodeAt(matched) !== character)
      matched = fallbacks[matched - 1] ?? 0;
    if (wanted.charCodeAt(matched) === character) matched += 1;
    to += 1;
    if (matched === wanted.length) {
      positions.add(to - matched, to);
      matched = fallbacks[matched - 1] ?? 0;
    }
  } while (matched > 0 && to < text.length);
  return { to, matched };
}

/** @param original in latin1, whose letters have as many bytes in either case */
function find({ heads, byHead, stubs }: PatternIndex, original: string): Findings {
  const text = original.toLowerCase();
  let positions: Positions | undefined;
  let openFrom = text.length;
  const followed = new Map<Pattern, number>();
  /** By head, how far each of its patterns was followed at least. */
  const done = new Map<string, number>();
  heads.lastIndex = 0;
  for (let found = heads.exec(text); found !== null; found = heads.exec(text)) {
    const [head] = found;
    const from = found.index;
    heads.lastIndex = from + 1; // Patterns may overlap.
    if (from < (done.get(head) ?? 0)) continue;
    positions ??= new Positions(text.length);
    const patterns = byHead.get(head) ?? [];
    for (const pattern of patterns) {
      if (from < (followed.get(pattern) ?? 0)) continue;
      const { to, matched } = follow(pattern, text, from, positions);
      followed.set(pattern, to);
      if (to === text.length) openFrom = Math.min(openFrom, to - matched);
    }
    done.set(
      head,
      patterns.reduce((least, each) => Math.min(least, followed.get(each) ?? 0), text.length),
    );
  }
  for (let length = Math.min(HEAD_LENGTH - 1, text.length); length > 0; length -= 1) {
    if (!stubs.has(text.slice(text.length - length))) continue;
    openFrom = Math.min(openFrom, text.length - length);
    break;
  }
  return { masks: positions?.masks ?? [], openFrom };
}

/**
 * Masks secrets in a stream, also across its chunks. Each byte is replaced by `*`, so lengths stay
 * as they were announced. Bytes are held back only while they may begin a secret, and no more than
 * {@link SHORT_MAX} of them only for {@link QUIET_MS}.
 */
export class Redactor extends Transform {
  readonly #index: PatternIndex;
  /** The end that may begin a secret. */
  #held: Buffer = Buffer.alloc(0);
  /** How many of the held bytes belong to a secret that began before them. */
  #maskedBytes = 0;
  /** How many of the held bytes were passed on nevertheless; they still count as its beginning. */
  #passedBytes = 0;
  #quiet: NodeJS.Timeout | undefined;

  constructor(index: PatternIndex) {
    super();
    this.#index = index;
  }

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    clearTimeout(this.#quiet);
    const bytes = this.#held.length === 0 ? chunk : Buffer.concat([this.#held, chunk]);
    const { masks, openFrom } = find(this.#index, bytes.toString('latin1'));
    const released = this.#mask(bytes, masks);
    const begun = masks.findLast(([from]) => from < openFrom); // Later ones are found again.
    const maskedTo = Math.max(this.#maskedBytes, begun?.[1] ?? 0);
    this.#maskedBytes = Math.max(0, maskedTo - openFrom);
    this.#held = Buffer.from(bytes.subarray(openFrom));
    const passed = this.#passedBytes;
    this.#passedBytes = Math.max(0, passed - openFrom);
    const { length } = this.#held;
    if (length > this.#passedBytes && length <= SHORT_MAX) {
      this.#quiet = setTimeout(() => this.#passHeld(), QUIET_MS);
    }
    done(null, released.subarray(passed, Math.max(passed, openFrom)));
  }

  /** The rest is the beginning of a secret; a short one may as well be something else. */
  override _flush(done: TransformCallback): void {
    clearTimeout(this.#quiet);
    const isTelling = this.#held.length >= SECRET_LENGTH_MIN;
    const rest = this.#mask(this.#held, isTelling ? [[0, this.#held.length]] : []);
    done(null, rest.subarray(this.#passedBytes));
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    clearTimeout(this.#quiet);
    done(error);
  }

  #passHeld(): void {
    const rest = this.#mask(this.#held, []).subarray(this.#passedBytes);
    this.#passedBytes = this.#held.length;
    this.push(rest);
  }

  #mask(bytes: Buffer, masks: Findings['masks']): Buffer {
    if (masks.length === 0 && this.#maskedBytes === 0) return bytes;
    const masked = Buffer.from(bytes); // The chunk may belong to somebody else.
    masked.fill(MASK, 0, Math.min(this.#maskedBytes, bytes.length));
    for (const [from, to] of masks) masked.fill(MASK, from, to);
    return masked;
  }
}

/** Masks secrets in a short text, such as a header. */
export function redactText(index: PatternIndex | undefined, text: string): string {
  if (index === undefined) return text;
  let masked = text;
  for (const [from, to] of find(index, text).masks) {
    masked = masked.slice(0, from) + '*'.repeat(to - from) + masked.slice(to);
  }
  return masked;
}
