/*
 * The editor holds lines without their ends: saving joins them again, with the file's own line end.
 */

/** The one line end that a text has, LF when it has none; undefined when it has several kinds. */
export function lineEndOf(text: string): string | undefined {
  const [lineEnd = '\n', ...others] = new Set(text.match(/\r\n?|\n/gu));
  return others.length === 0 ? lineEnd : undefined;
}
