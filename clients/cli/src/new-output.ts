const REPLACEMENT = 0xfffd;

/** The length of the longest end of a text that another one begins with (Knuth, Morris, Pratt). */
function overlapOf(former: string, text: string): number {
  // For each beginning of the text, the longest shorter one that is also its end.
  const shorter = new Int32Array(text.length);
  const extend = (length: number, character: number): number => {
    let matched = length;
    while (matched > 0 && text.charCodeAt(matched) !== character) {
      matched = shorter[matched - 1] ?? 0;
    }
    return text.charCodeAt(matched) === character ? matched + 1 : 0;
  };
  for (let at = 1; at < text.length; at += 1) {
    shorter[at] = extend(shorter[at - 1] ?? 0, text.charCodeAt(at));
  }
  let matched = 0;
  for (let at = 0; at < former.length; at += 1) {
    matched = extend(matched, former.charCodeAt(at));
  }
  return matched;
}

/** A character of which the last bytes are still to come looks like U+FFFD. */
function withoutOpenEnd(text: string): string {
  let end = text.length;
  while (end > 0 && text.charCodeAt(end - 1) === REPLACEMENT) end -= 1;
  return text.slice(0, end);
}

/**
 * Finds the new part of a stream in what is kept of it, of which the beginning may have been
 * dropped meanwhile. Nothing tells how much: what was seen and is still kept is the longest text
 * that ends the one and begins the other, which is wrong only where all of it repeats itself.
 */
export class NewOutput {
  #seen = '';

  /** @param kept what is kept of the stream now @param isWhole whether nothing more comes */
  in(kept: string, isWhole: boolean): string {
    const text = isWhole ? kept : withoutOpenEnd(kept);
    const seen = this.#seen;
    this.#seen = text;
    if (text.startsWith(seen)) return text.slice(seen.length);
    const rest = text.replace(/^\uFFFD+/u, ''); // The text may begin within a character, too.
    return rest.slice(overlapOf(seen, rest));
  }
}
