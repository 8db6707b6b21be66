import type { Brokering } from '../../shared/network/egress-rules.ts';

/*
 * The byte sequences that must not come back to a guest: what a rule adds to its requests, and the
 * forms in which servers usually print such a thing.
 */

/** Shorter texts could be in any file, and do not count as secrets. */
export const SECRET_LENGTH_MIN = 8;
/** A part of a path that is as long is more likely a token than a word. */
const TOKEN_LENGTH_MIN = 16;

/** The secrets of a rule with their usual encodings, as latin1 texts; longest first. */
export function secretPatterns({ headers, forwardUrl }: Brokering): string[] {
  const secrets = [
    ...Object.values(headers).flatMap(partsOfHeader),
    ...(forwardUrl === undefined ? [] : partsOfUrl(forwardUrl)),
  ];
  const long = secrets.filter((secret) => secret.length >= SECRET_LENGTH_MIN);
  const patterns = new Set(long.flatMap(encodingsOf).map(toLatin1));
  return [...patterns].toSorted((a, b) => b.length - a.length);
}

/** A whole value and, of credentials (RFC 9110, 11.4), the part after the scheme. */
function partsOfHeader(value: string): string[] {
  const [, scheme, credentials] = /^([A-Za-z][\w-]*) +(\S.*)$/u.exec(value) ?? [];
  if (credentials === undefined) return [value];
  if (scheme?.toLowerCase() !== 'basic') return [value, credentials];
  const user = Buffer.from(credentials, 'base64').toString('utf8');
  return [value, credentials, user, user.slice(user.indexOf(':') + 1)];
}

function partsOfUrl(text: string): string[] {
  const { href, search, searchParams, pathname } = new URL(text);
  const tokens = pathname.split('/').filter((part) => part.length >= TOKEN_LENGTH_MIN);
  const queries = search === '' ? [] : [href, search.slice(1), ...searchParams.values()];
  return [...queries, ...tokens];
}

function encodingsOf(secret: string): string[] {
  const json = JSON.stringify(secret).slice(1, -1);
  const url = encodeURIComponent(secret);
  const bytes = Buffer.from(secret, 'utf8');
  const html = secret.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
  return [
    secret,
    json,
    json.replaceAll('/', String.raw`\/`),
    url,
    url.replaceAll(/%../gu, (escape) => escape.toLowerCase()),
    url.replaceAll('%20', '+'),
    html,
    html.replaceAll('"', '&quot;').replaceAll("'", '&#39;'),
    html.replaceAll('"', '&#34;').replaceAll("'", '&#x27;'),
    bytes.toString('hex'),
    bytes.toString('hex').toUpperCase(),
    ...([0, 1, 2] as const).flatMap((offset) => base64Of(bytes, offset)),
  ];
}

/**
 * The part of a text's base64 that depends on the secret alone, when the secret begins after so
 * many bytes.
 */
function base64Of(secret: Buffer, offset: 0 | 1 | 2): string[] {
  const shifted = Buffer.concat([Buffer.alloc(offset), secret]);
  const from = Math.ceil((offset * 8) / 6);
  const to = Math.floor((shifted.length * 8) / 6);
  return (['base64', 'base64url'] as const).map((form) => shifted.toString(form).slice(from, to));
}

const toLatin1 = (text: string): string => Buffer.from(text, 'utf8').toString('latin1');
