const KIB = 1024;
/** Limit of each stream; a model reads all of it, and pays for it. */
export const EXCERPT_BYTES = 32 * KIB;
const HEX_BYTES = 16;
const NUL = 0;

/** Whether a byte of UTF-8 goes on with a character that began before it. */
const isContinuation = (byte: number | undefined): boolean =>
  byte !== undefined && (byte & 0xc0) === 0x80;

/**
 * How many bytes of the text are whole characters: up to three bytes of a last one are left out.
 */
export function wholeCharacters(bytes: Uint8Array): number {
  let start = bytes.length - 1;
  while (start > bytes.length - 4 && isContinuation(bytes[start])) start -= 1;
  const first = bytes[start] ?? 0;
  const length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
  return start >= 0 && start + length > bytes.length ? start : bytes.length;
}

const count = (value: number): string => value.toLocaleString('en-US');

/**
 * The first and the last part of a stream of any length, in memory that does not grow with it: what
 * matters of long output is how it began and how it ended.
 */
export class Excerpt {
  readonly #halfMax: number;
  readonly #head: Uint8Array[] = [];
  #headBytes = 0;
  #tail: Uint8Array[] = [];
  #tailBytes = 0;
  #total = 0;

  constructor(bytesMax: number = EXCERPT_BYTES) {
    this.#halfMax = Math.floor(bytesMax / 2);
  }

  static of(text: string, bytesMax?: number): Excerpt {
    const excerpt = new Excerpt(bytesMax);
    excerpt.add(new TextEncoder().encode(text));
    return excerpt;
  }

  /** Bytes that were added. */
  get total(): number {
    return this.#total;
  }

  get isCut(): boolean {
    return this.#total > this.#headBytes + this.#tailBytes;
  }

  add(bytes: Uint8Array): void {
    this.#total += bytes.length;
    const room = this.#halfMax - this.#headBytes;
    const head = bytes.slice(0, room); // A copy: a view would keep all of its buffer.
    if (head.length > 0) {
      this.#head.push(head);
      this.#headBytes += head.length;
    }
    const rest = bytes.subarray(head.length).slice(-this.#halfMax);
    if (rest.length === 0) return;
    this.#tail.push(rest);
    this.#tailBytes += rest.length;
    this.#trim();
  }

  /** The kept text, with a line that says how much is missing. */
  text(): string {
    const [head, tail] = [Buffer.concat(this.#head), Buffer.concat(this.#tail)];
    if (head.includes(NUL) || tail.includes(NUL)) return describeBinary(head, this.#total);
    if (!this.isCut) return new TextDecoder().decode(Buffer.concat([head, tail]));
    const begin = head.subarray(0, wholeCharacters(head));
    let from = 0;
    while (from < 3 && isContinuation(tail[from])) from += 1;
    const end = tail.subarray(from);
    const left = this.#total - begin.length - end.length;
    const note = `[… ${count(left)} of ${count(this.#total)} bytes left out …]`;
    return `${decode(begin)}\n${note}\n${decode(end)}`;
  }

  #trim(): void {
    let excess = this.#tailBytes - this.#halfMax;
    if (excess <= 0) return;
    let whole = 0;
    for (let piece; (piece = this.#tail[whole]) !== undefined && piece.length <= excess;) {
      excess -= piece.length;
      whole += 1;
    }
    if (whole > 0) this.#tail.splice(0, whole);
    const [first] = this.#tail;
    if (first !== undefined) this.#tail[0] = first.subarray(excess);
    this.#tailBytes = this.#halfMax;
  }
}

const decode = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);

function describeBinary(head: Uint8Array, total: number): string {
  const hex = Buffer.from(head.subarray(0, HEX_BYTES)).toString('hex');
  return `[${count(total)} bytes that are not text, beginning with ${hex}; write them to a file to use them]`;
}
