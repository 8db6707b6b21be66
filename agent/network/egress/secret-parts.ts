import { headerKey } from '../../../shared/http/header-key.ts';
import { parseJson } from '../../../shared/json.ts';

/*
 * The parts of what a rule adds to requests that may be secrets: a server prints a cookie without
 * its name, a token without its scheme, and the user of credentials that came in base64.
 */

/** Shorter texts could be in any file, and do not count as secrets. */
export const SECRET_LENGTH_MIN = 8;
/** A text as long is a secret also without a digit. */
const WORD_LENGTH_MIN = 12;
/** A longer value is not looked for as a whole where its parts are. */
const WHOLE_MAX = 512;
/** A part of a path that is one word in lower case is a secret only if it is as long. */
const PATH_WORD_LENGTH_MIN = 16;

const MEDIA_TYPE =
  /^(?:application|audio|font|image|message|model|multipart|text|video)\/[\w.+*-]+$/iu;
/** Words with few digits at their ends, as people name hosts; tokens with dots look otherwise. */
const HOST_NAME = /^(?:[a-z]*\d{0,3}(?:-[a-z]*\d{0,3})*\.)+[a-z]{2,6}(?::\d+)?$/iu;
/** Names of headers that many answers have. */
const HEADER_NAMES: ReadonlySet<string> = new Set([
  ...['accept-encoding', 'accept-language', 'accept-ranges', 'authorization', 'cache-control'],
  ...['content-disposition', 'content-encoding', 'content-language', 'content-length'],
  ...['content-type', 'if-modified-since', 'if-none-match', 'last-modified', 'set-cookie'],
  ...['transfer-encoding', 'user-agent', 'www-authenticate', 'x-forwarded-for', 'x-request-id'],
]);

/** Whether an ordinary page may have this text, which is a part of a value. */
const isOrdinary = (text: string): boolean =>
  MEDIA_TYPE.test(text) || HOST_NAME.test(text) || HEADER_NAMES.has(text.toLowerCase());

/** Headers that usually carry hosts and media types. */
const OF_HOSTS_AND_TYPES: ReadonlySet<string> = new Set([
  ...['accept', 'content-type', 'host', 'origin', 'referer', 'user-agent', 'x-forwarded-host'],
]);

/** Whether a text is long enough for a secret: a whole value is one then, however it looks. */
const isLong = (text: string): boolean =>
  text.length >= WORD_LENGTH_MIN ||
  (text.length >= SECRET_LENGTH_MIN && /\d/u.test(text) && /[a-z]/iu.test(text));

/** Whether a part of a value is a secret. */
const isSecret = (part: string): boolean =>
  isLong(part) && /[a-z\d]/iu.test(part) && !isOrdinary(part);

/**
 * The secrets in a header: the whole of its value, what stands after a scheme (RFC 9110, 11.4), and
 * the values of its parts.
 */
export function secretsOfHeader(name: string, value: string): string[] {
  const [, credentials] = /^[A-Za-z][\w-]* +(\S.*)$/u.exec(value) ?? [];
  const given = credentials ?? value;
  const parts = [...partsOf(given)];
  const secrets = parts.filter(isSecret);
  const isKnownByParts =
    secrets.length === 0
      ? OF_HOSTS_AND_TYPES.has(headerKey(name)) && parts.some(isOrdinary)
      : value.length > WHOLE_MAX;
  const wholes = isKnownByParts ? [] : [value, given, ...onlyValueOf(given)].filter(isLong);
  return [...wholes, ...secrets, ...parts.flatMap(credentialsIn)];
}

/** The value of a text that is one `name="value"`: no less a whole than without its name. */
const onlyValueOf = (text: string): string[] => (/[;,\s]/u.test(text) ? [] : [bareValue(text)]);

/** The secrets in a URL: values of its query, and parts of its path that are no words. */
export function secretsOfUrl(text: string): string[] {
  const { search, searchParams, pathname } = new URL(text);
  const values = [...searchParams.values()];
  const parts = values.flatMap((value) => [...partsOf(value)]);
  const secrets = [...values.filter(isLong), ...parts.filter(isSecret)];
  return [
    ...(secrets.length === 0 ? [] : [search.slice(1)]),
    ...secrets,
    ...[...values, ...parts].flatMap(credentialsIn),
    ...pathname
      .split('/')
      .flatMap((part) => [part, decodedPath(part)])
      .filter(isPathSecret),
  ];
}

const isPathSecret = (part: string): boolean =>
  isSecret(part) && (part.length >= PATH_WORD_LENGTH_MIN || !/^[a-z]+$/u.test(part));

function decodedPath(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The values in a text, at each level of its separators; their names are left out. */
function* partsOf(text: string): Generator<string> {
  // The closing quote is optional, so that an unclosed one does not make the match quadratic.
  for (const [, quoted = '', colon] of text.matchAll(/"((?:[^"\\]|\\.)*)(?:"(?:\s*(:))?)?/gu)) {
    if (colon === undefined) yield quoted.replaceAll(/\\(.)/gu, '$1');
  }
  for (const word of text.split(/[;,\s]+/u)) yield* partsOfWord(word);
}

/** @param word a text without blanks, such as `name="value"` */
function* partsOfWord(word: string): Generator<string> {
  const value = bareValue(word);
  if (/^https?:/iu.test(value) && URL.canParse(value)) {
    yield new URL(value).hostname;
    yield* secretsOfUrl(value);
    return;
  }
  yield value;
  if (isOrdinary(value)) return;
  for (const part of value.split(':')) {
    const bare = withoutName(part).replaceAll('"', '');
    yield bare;
    yield* bare.split('=');
    yield* partsOfToken(bare);
  }
}

/** The value of `name=value`, without surrounding quotes and brackets. */
const bareValue = (word: string): string =>
  withoutName(word).replaceAll(/^["'([{<]+|["')\]}>]+$/gu, '');

/** The value of `name=value`. Trailing equals signs are base64 padding, not a separator. */
const withoutName = (text: string): string => text.replace(/^[\w!#$%&'*+.^`|~-]+=(?=[^=])/u, '');

/** The parts between dots. The first one of a JWT says how it is signed, as those of others do. */
function partsOfToken(token: string): string[] {
  const [first = '', ...others] = token.split('.');
  return /"alg"\s*:/u.test(decode(first) ?? '') ? others : [first, ...others];
}

/** The text that base64 stands for; undefined when it is none. */
function decode(text: string): string | undefined {
  if (!/^[\w+/-]{8,}={0,2}$/u.test(text)) return undefined;
  const bytes = Buffer.from(text, 'base64');
  const found = bytes.toString('utf8');
  return /^[^\p{Cc}\ufffd]+$/u.test(found) ? found : undefined;
}

/** The secrets of credentials in base64: of `user:password` the password, however it looks. */
function credentialsIn(text: string): string[] {
  const found = decode(text);
  if (found === undefined) return [];
  if (found.startsWith('{')) return stringsIn(found).filter(isSecret);
  const secrets = [found].filter(isLong).concat([...partsOf(found)].filter(isSecret));
  const [, password = ''] = /:(.*)$/su.exec(found) ?? [];
  return password.length < SECRET_LENGTH_MIN ? secrets : [...secrets, found, password];
}

/** The strings in JSON, but for names. */
function stringsIn(json: string): string[] {
  try {
    const strings: string[] = [];
    JSON.stringify(parseJson(json), (_name, value: unknown) => {
      if (typeof value === 'string') strings.push(value);
      return value;
    });
    return strings;
  } catch {
    return [];
  }
}
