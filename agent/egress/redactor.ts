import { Transform, type TransformCallback } from 'node:stream';
import { SECRET_LENGTH_MIN } from './secret-patterns.ts';

const HEAD_LENGTH = SECRET_LENGTH_MIN;
const MASK = '*'.charCodeAt(0);

/** Finds patterns in text by their first characters. */
export interface PatternIndex {
  readonly heads: RegExp;
  /** The longest first. */
  readonly byHead: ReadonlyMap<string, readonly string[]>;
  /** Every beginning of a head that is shorter than it. */
  readonly stubs: ReadonlySet<string>;
}

/** @param patterns latin1 texts of at least {@link SECRET_LENGTH_MIN} characters */
export function indexPatterns(patterns: readonly string[]): PatternIndex | undefined {
  if (patterns.length === 0) return undefined;
  const longestFirst = patterns.toSorted((a, b) => b.length - a.length);
  const byHead = Map.groupBy(longestFirst, (pattern) => pattern.slice(0, HEAD_LENGTH));
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
  /** Where a possible beginning of a pattern starts at the text's end; the text's end without one. */
  readonly openFrom: number;
}

/** A text may repeat a secret at each of its characters, so what overlaps is one mask. */
function addMask(masks: Mask[], from: number, to: number): void {
  const last = masks.at(-1);
  if (last === undefined || from > last[1]) masks.push([from, to]);
  else last[1] = Math.max(last[1], to);
}

function find({ heads, byHead, stubs }: PatternIndex, text: string): Findings {
  const masks: Mask[] = [];
  let openFrom = text.length;
  heads.lastIndex = 0;
  for (let found = heads.exec(text); found !== null; found = heads.exec(text)) {
    const from = found.index;
    heads.lastIndex = from + 1; // Patterns may overlap.
    for (const pattern of byHead.get(found[0]) ?? []) {
      if (text.startsWith(pattern, from)) {
        addMask(masks, from, from + pattern.length);
        break; // Shorter ones lie within it.
      }
      if (from < openFrom && pattern.startsWith(text.slice(from))) openFrom = from;
    }
  }
  for (let length = Math.min(HEAD_LENGTH - 1, text.length); length > 0; length -= 1) {
    if (!stubs.has(text.slice(text.length - length))) continue;
    openFrom = Math.min(openFrom, text.length - length);
    break;
  }
  return { masks, openFrom };
}

/**
 * Masks secrets in a stream, also across its chunks. Each byte is replaced by `*`, so lengths stay
 * as they were announced. Bytes are held back only while they may begin a secret.
 */
export class Redactor extends Transform {
  readonly #index: PatternIndex;
  #held: Buffer = Buffer.alloc(0);
  /** How many of the held bytes belong to a secret that began before them. */
  #maskedBytes = 0;

  constructor(index: PatternIndex) {
    super();
    this.#index = index;
  }

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    const bytes = this.#held.length === 0 ? chunk : Buffer.concat([this.#held, chunk]);
    const { masks, openFrom } = find(this.#index, bytes.toString('latin1'));
    const released = this.#mask(bytes, masks);
    const begun = masks.findLast(([from]) => from < openFrom); // Later ones are found again.
    const maskedTo = Math.max(this.#maskedBytes, begun?.[1] ?? 0);
    this.#maskedBytes = Math.max(0, maskedTo - openFrom);
    this.#held = Buffer.from(bytes.subarray(openFrom));
    done(null, released.subarray(0, openFrom));
  }

  /** The rest is the beginning of a secret; a short one may as well be something else. */
  override _flush(done: TransformCallback): void {
    const isTelling = this.#held.length >= SECRET_LENGTH_MIN;
    done(null, this.#mask(this.#held, isTelling ? [[0, this.#held.length]] : []));
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
