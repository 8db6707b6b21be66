export interface JsonBounds {
  /** Arrays and objects within each other. */
  readonly depthMax?: number;
  /** Values altogether. */
  readonly valuesMax?: number;
}

const DEPTH_MAX = 32;
const VALUES_MAX = 100_000;

const [QUOTE, BACKSLASH, COMMA] = [0x22, 0x5c, 0x2c];
const [ARRAY_BEGIN, ARRAY_END, OBJECT_BEGIN, OBJECT_END] = [0x5b, 0x5d, 0x7b, 0x7d];

/** A text that may be JSON, but of a shape that nothing of ours has. */
export class JsonRefused extends SyntaxError {}

/**
 * The only way in for JSON (`.oxlintrc.json` refuses `JSON.parse` elsewhere). Nesting and the number
 * of values are bounded by one pass over the text before anything is built: whatever walks the result
 * (validation, printing) does so recursively. The key `__proto__` is refused, since code that copies
 * an object with it would change its prototype.
 * @throws SyntaxError, of class {@link JsonRefused} when the text exceeds a bound
 */
export function parseJson(text: string, bounds: JsonBounds = {}): unknown {
  checkShape(text, bounds.depthMax ?? DEPTH_MAX, bounds.valuesMax ?? VALUES_MAX);
  // oxlint-disable-next-line no-restricted-properties -- its shape was checked
  const value: unknown = JSON.parse(text);
  // Written out, or with an escaped underscore.
  if (/__proto__|\\u005f/iu.test(text)) refusePrototype(value);
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

/** Where the string that begins at `from` has its closing quote, or the end of the text. */
function endOfString(text: string, from: number): number {
  for (let at = text.indexOf('"', from); at !== -1; at = text.indexOf('"', at + 1)) {
    let backslashes = 0;
    while (at - backslashes > from && text.charCodeAt(at - backslashes - 1) === BACKSLASH) {
      backslashes += 1;
    }
    if (backslashes % 2 === 0) return at;
  }
  return text.length;
}

/** Recursive: the depth is bounded by now. */
function refusePrototype(value: unknown): void {
  if (typeof value !== 'object' || value === null) return;
  if (Object.hasOwn(value, '__proto__')) throw new JsonRefused('it has the key __proto__');
  for (const child of Object.values(value)) refusePrototype(child);
}
