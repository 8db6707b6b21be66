/** The request headers that preconditions are read from; names in lower case. */
export type RequestHeaders = Readonly<Record<string, string | undefined>>;

export interface Validators {
  /** A strong entity tag, with its quotes. */
  readonly etag: string;
  readonly modifiedAt: Date;
}

const ENTITY_TAG = /(?<weak>W\/)?(?<tag>"[\u0021\u0023-\u007e\u0080-\u00ff]*")/gu;
const IMF_DATE = /^[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT$/u;
const RFC850_DATE = /^[A-Z][a-z]{5,8}, \d{2}-[A-Z][a-z]{2}-\d{2} \d{2}:\d{2}:\d{2} GMT$/u;
const ASCTIME_DATE = /^[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}:\d{2} \d{4}$/u;

/** Seconds since the epoch of an HTTP-date (RFC 9110, section 5.6.7), or undefined. */
function parseHttpDate(text: string): number | undefined {
  const isKnown = IMF_DATE.test(text) || RFC850_DATE.test(text);
  const ms = Date.parse(ASCTIME_DATE.test(text) ? `${text} GMT` : isKnown ? text : '');
  return Number.isNaN(ms) ? undefined : ms / 1000;
}

const secondsOf = (date: Date): number => Math.floor(date.getTime() / 1000);

function listsTag(header: string, etag: string, options: { weak: boolean }): boolean {
  if (header.trim() === '*') return true;
  return [...header.matchAll(ENTITY_TAG)].some(
    ({ groups }) => groups?.['tag'] === etag && (options.weak || groups['weak'] === undefined),
  );
}

/**
 * Evaluates the preconditions of a GET or HEAD in the order of RFC 9110, section 13.2.2.
 * Pure.
 */
export function checkPreconditions(
  headers: RequestHeaders,
  { etag, modifiedAt }: Validators,
): 'proceed' | 'not_modified' | 'failed' {
  const modified = secondsOf(modifiedAt);
  const ifMatch = headers['if-match'];
  if (ifMatch !== undefined) {
    if (!listsTag(ifMatch, etag, { weak: false })) return 'failed';
  } else {
    const limit = parseHttpDate(headers['if-unmodified-since'] ?? '');
    if (limit !== undefined && modified > limit) return 'failed';
  }
  const ifNoneMatch = headers['if-none-match'];
  if (ifNoneMatch !== undefined) {
    return listsTag(ifNoneMatch, etag, { weak: true }) ? 'not_modified' : 'proceed';
  }
  const since = parseHttpDate(headers['if-modified-since'] ?? '');
  return since !== undefined && modified <= since ? 'not_modified' : 'proceed';
}

/**
 * Whether If-Range allows the Range header (RFC 9110, section 13.1.5), which takes a strong
 * validator. A date is strong once the second that it names is over, so that no later change falls
 * into it.
 */
export function allowsRange(
  ifRange: string | undefined,
  { etag, modifiedAt }: Validators,
  now: Date,
): boolean {
  if (ifRange === undefined) return true;
  if (ifRange.startsWith('"')) return ifRange === etag;
  const modified = secondsOf(modifiedAt);
  return parseHttpDate(ifRange) === modified && secondsOf(now) > modified;
}
