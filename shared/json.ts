export interface JsonBounds {
  /** How deep arrays and objects may be nested. */
  readonly depthMax?: number;
  /** How many values there may be in all. */
  readonly valuesMax?: number;
}

const DEPTH_MAX = 32;
const VALUES_MAX = 100_000;

const [QUOTE, BACKSLASH, COLON, COMMA] = [0x22, 0x5c, 0x3a, 0x2c];
const [ARRAY_BEGIN, ARRAY_END, OBJECT_BEGIN, OBJECT_END] = [0x5b, 0x5d, 0x7b, 0x7d];

/** The text exceeds a bound or has a forbidden key; it may be valid JSON otherwise. */
export class JsonRefused extends SyntaxError {}

/**
 * Parses JSON within bounds. The linter refuses `JSON.parse` elsewhere. One pass over the text
 * checks nesting and the number of values before anything is built, because whatever walks the
 * result later (validation, printing) is recursive. The key `__proto__` is refused: code that
 * copies an object with it would change the copy's prototype.
 * @throws SyntaxError, of class {@link JsonRefused} when the text exceeds a bound
 */
export function parseJson(text: string, bounds: JsonBounds = {}): unknown {
  checkShape(text, bounds.depthMax ?? DEPTH_MAX, bounds.valuesMax ?? VALUES_MAX);
  // oxlint-disable-next-line no-restricted-properties -- The bounds were checked.
  const value: unknown = JSON.parse(text);
  // The key may be spelt out or with an escaped underscore.
  if (/__proto__|\\u005f/iu.test(text)) refusePrototype(value);
  return value;
}

/**
 * Parses JSON that a caller has sent. Half of a surrogate pair, which only an escape can spell (RFC
 * 8259, section 8.2), is refused: it would become another character wherever the text is written as
 * UTF-8, so that two names could be one.
 * @throws SyntaxError, of class {@link JsonRefused} when the text exceeds a bound or is not Unicode
 */
export function parseCallerJson(text: string): unknown {
  const value = parseJson(text);
  if (/\\ud[89a-f]/iu.test(text)) refuseMalformed(value);
  return value;
}

function checkShape(text: string, depthMax: number, valuesMax: number): void {
  let depth = 0;
  let values = 0;
  for (let at = 0; at < text.length; at += 1) {
    switch (text.charCodeAt(at)) {
      case QUOTE: {
        at = endOfString(text, at + 1);
        break;
      }
      case ARRAY_BEGIN:
      case OBJECT_BEGIN: {
        depth += 1;
        values += 1;
        break;
      }
      case ARRAY_END:
      case OBJECT_END: {
        depth -= 1;
        break;
      }
      case COMMA: {
        values += 1;
        break;
      }
    }
    if (depth > depthMax) throw new JsonRefused(`it is nested deeper than ${depthMax} levels`);
    if (values > valuesMax) throw new JsonRefused(`it has more than ${valuesMax} values`);
  }
}

/**
 * Finds the first key that occurs twice in an object. `JSON.parse` silently keeps the last value
 * (RFC 8259, section 4, leaves it open).
 * @param text valid JSON
 */
export function findDuplicateKey(text: string): string | undefined {
  /** The keys so far of each object that is open. */
  const open: Set<string>[] = [];
  let string = { from: 0, end: 0 };
  for (let at = 0; at < text.length; at += 1) {
    switch (text.charCodeAt(at)) {
      case QUOTE: {
        string = { from: at, end: endOfString(text, at + 1) + 1 };
        at = string.end - 1;
        break;
      }
      case COLON: {
        const key = readString(text.slice(string.from, string.end));
        if (open.at(-1)?.has(key) === true) return key;
        open.at(-1)?.add(key);
        break;
      }
      case OBJECT_BEGIN: {
        open.push(new Set());
        break;
      }
      case OBJECT_END: {
        open.pop();
        break;
      }
    }
  }
  return undefined;
}

/** The text that a string of JSON stands for. */
const readString = (json: string): string =>
  // oxlint-disable-next-line no-restricted-properties -- A string has no shape to check.
  json.includes('\\') ? String(JSON.parse(json)) : json.slice(1, -1);

/** How many characters are looked at one by one before a search for the next quote. */
const WALKED = 64;

/**
 * The index of the closing quote of the string whose contents begin at `from`, or the text's end. A
 * search is fast over plain text, and slow where every other character is an escaped quote.
 */
function endOfString(text: string, from: number): number {
  for (let at = from; at < text.length;) {
    for (const end = at + WALKED; at < end; at += 1) {
      const character = text.charCodeAt(at);
      if (character === QUOTE) return at;
      if (character === BACKSLASH) at += 1;
    }
    const quote = text.indexOf('"', at);
    if (quote === -1) break;
    let backslashes = 0;
    while (quote - backslashes > at && text.charCodeAt(quote - backslashes - 1) === BACKSLASH) {
      backslashes += 1;
    }
    if (backslashes % 2 === 0) return quote;
    at = quote + 1;
  }
  return text.length;
}

/** Recursive, which is safe because the depth was checked. */
function refuseMalformed(value: unknown): void {
  if (typeof value === 'string' && !value.isWellFormed()) {
    throw new JsonRefused('it has text that is not valid Unicode');
  }
  if (typeof value !== 'object' || value === null) return;
  for (const [key, child] of Object.entries(value)) {
    refuseMalformed(key);
    refuseMalformed(child);
  }
}

/** Recursive, which is safe because the depth was checked. */
function refusePrototype(value: unknown): void {
  if (typeof value !== 'object' || value === null) return;
  if (Object.hasOwn(value, '__proto__')) throw new JsonRefused('it has the key __proto__');
  for (const child of Object.values(value)) refusePrototype(child);
}
