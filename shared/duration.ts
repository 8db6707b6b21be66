const UNIT_MS: Readonly<Record<string, number>> = {
  ns: 1e-6,
  us: 1e-3,
  µs: 1e-3,
  ms: 1,
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
};
const TERM = '(\\d{1,15}(?:\\.\\d{0,9})?|\\.\\d{1,9})(ns|us|µs|ms|s|m|h)';
const DURATION = new RegExp(`^(?:${TERM})+$`, 'u');

/**
 * Reads a duration as Go writes it: numbers with units, such as `90s`, `1.5h` or `1h30m`.
 * @returns milliseconds, possibly with a fraction; undefined when the text is none
 */
export function parseDuration(text: string): number | undefined {
  if (!DURATION.test(text)) return undefined;
  let ms = 0;
  for (const [, count = '', unit = ''] of text.matchAll(new RegExp(TERM, 'gu'))) {
    ms += Number(count) * (UNIT_MS[unit] ?? 0);
  }
  return ms;
}
