import type { Brokering } from '../../../shared/network/egress-rules.ts';
import { secretsOfHeader, secretsOfUrl } from './secret-parts.ts';

/*
 * The byte sequences that must not come back to a guest: what a rule adds to its requests, and the
 * forms in which servers usually print such a thing.
 */

/** A rule may be 128 KiB long, and one process holds the patterns of all slots of a host. */
const SECRETS_MAX = 512;

/**
 * The secrets of a rule with their usual encodings, as latin1 texts. Letters are to be compared
 * without case: servers print hexadecimal digits and tokens in either.
 */
export function secretPatterns({ headers, forwardUrl }: Brokering): string[] {
  const secrets = new Set([
    ...Object.entries(headers).flatMap(([name, value]) => secretsOfHeader(name, value)),
    ...(forwardUrl === undefined ? [] : secretsOfUrl(forwardUrl)),
  ]);
  const longest = [...secrets].toSorted((a, b) => b.length - a.length).slice(0, SECRETS_MAX);
  return [...new Set(longest.flatMap(encodingsOf))];
}

function encodingsOf(secret: string): string[] {
  const bytes = Buffer.from(secret, 'utf8');
  const wide = Buffer.from(secret, 'utf16le');
  const isPlain = secret.search(SPECIAL) === -1;
  const forms = isPlain ? [] : [...jsonForms(secret), ...urlForms(secret), ...htmlForms(secret)];
  return [
    ...[secret, ...forms].map(toLatin1),
    bytes.toString('hex'),
    ...([0, 1, 2] as const).flatMap((offset) => base64Of(bytes, offset)),
    wide.toString('latin1'),
    wide.swap16().toString('latin1'),
  ];
}

/** Characters that some form writes otherwise; most tokens have none. */
const SPECIAL = /[^\w.-]/gu;

/** Sets of characters that libraries escape as `\u….` in JSON, so that it may stand in HTML. */
const JSON_ESCAPED = ['', '<>&', `<>&'`, `<>&'=`, `<>&'"`, `<>&'"+\``] as const;

const unicode = (text: string): string =>
  String.raw`\u${text.charCodeAt(0).toString(16).padStart(4, '0')}`;

const jsonForms = (secret: string): string[] =>
  JSON_ESCAPED.flatMap((escaped) => {
    const form = secret.replaceAll(SPECIAL, (each) =>
      escaped.includes(each) ? unicode(each) : JSON.stringify(each).slice(1, -1),
    );
    return [form, form.replaceAll('/', String.raw`\/`)];
  });

const percent = (text: string): string => `%${text.charCodeAt(0).toString(16)}`;

function urlForms(secret: string): string[] {
  const part = encodeURIComponent(secret);
  const forms = [
    part,
    part.replaceAll(/[!'()*]/gu, percent),
    part.replaceAll(/[!'()~]/gu, percent),
  ];
  return [...forms, ...forms.map((form) => form.replaceAll('%20', '+'))];
}

/** The escapes of libraries in HTML for more than `&`, `<` and `>`. */
const HTML_ESCAPED: readonly Readonly<Record<string, string>>[] = [
  {},
  { '"': '&quot;' },
  { '"': '&quot;', "'": '&#39;' },
  { '"': '&quot;', "'": '&#039;' },
  { '"': '&quot;', "'": '&#x27;' },
  { '"': '&quot;', "'": '&apos;' },
  { '"': '&#34;', "'": '&#39;' },
  { '"': '&quot;', "'": '&#x27;', '/': '&#x2f;' },
  { '"': '&quot;', "'": '&#39;', '/': '&#x2f;', '`': '&#x60;', '=': '&#x3d;' },
];

const htmlForms = (secret: string): string[] =>
  HTML_ESCAPED.map((more) => {
    const escapes = new Map(Object.entries({ '&': '&amp;', '<': '&lt;', '>': '&gt;', ...more }));
    return secret.replaceAll(SPECIAL, (each) => escapes.get(each) ?? each);
  });

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
