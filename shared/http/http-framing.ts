import type { IncomingMessage } from 'node:http';

/*
 * Decides where the body of an HTTP/1 request ends. If two parsers on a request's way disagree
 * about that, the rest of one caller's body becomes the head of the next caller's request (request
 * smuggling, CWE-444). So only this module reads framing, more strictly than RFC 9112 and Node's
 * own parser, and whatever forwards a request writes its framing anew from this reading.
 */

/** How a body is announced: not at all, in chunks, or by its length in bytes. */
export type BodyFraming = 'none' | 'chunked' | number;

/** The head of a request as Node's parser has read it. */
export type RequestHead = Pick<IncomingMessage, 'httpVersion' | 'method' | 'rawHeaders'>;

// The methods that give a body a meaning (RFC 9110, section 9.3; RFC 5789).
const METHODS_WITH_BODY = new Set(['PATCH', 'POST', 'PUT']);

// At most 15 digits: any such number is exact in JavaScript.
const LENGTH = /^(?:0|[1-9][0-9]{0,14})$/u;

// Node announces chunks for a request of any other method that announces nothing.
const METHODS_UNANNOUNCED = new Set(['CONNECT', 'DELETE', 'GET', 'HEAD', 'OPTIONS', 'TRACE']);

const mayHaveBody = (method = ''): boolean => METHODS_WITH_BODY.has(method);

/** The values of the headers that decide where a request ends or goes. */
interface FramingValues {
  readonly lengths: string[];
  readonly encodings: string[];
  readonly upgrades: string[];
  readonly hosts: string[];
}

const FRAMING_NAMES: ReadonlyMap<string, keyof FramingValues> = new Map([
  ['content-length', 'lengths'],
  ['transfer-encoding', 'encodings'],
  ['upgrade', 'upgrades'],
  ['host', 'hosts'],
]);

function framingValues(rawHeaders: readonly string[]): FramingValues {
  const values: FramingValues = { lengths: [], encodings: [], upgrades: [], hosts: [] };
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = FRAMING_NAMES.get((rawHeaders[at] ?? '').toLowerCase());
    if (name !== undefined) values[name].push(rawHeaders[at + 1] ?? '');
  }
  return values;
}

/** The framing of a request in which `findFramingFault` found no fault. */
export function framingOf({ rawHeaders }: Pick<RequestHead, 'rawHeaders'>): BodyFraming {
  const { lengths, encodings } = framingValues(rawHeaders);
  if (encodings.length > 0) return 'chunked';
  const [length] = lengths;
  return length === undefined ? 'none' : Number(length);
}

/** The framing to announce when a request is sent on: 0 where Node would announce chunks. */
export const framingToSend = (framing: BodyFraming, method = 'GET'): BodyFraming =>
  framing === 'none' && !METHODS_UNANNOUNCED.has(method) ? 0 : framing;

/** Names and values of the headers that announce a framing. */
export function framingHeaders(framing: BodyFraming): string[] {
  if (framing === 'none') return [];
  return framing === 'chunked'
    ? ['Transfer-Encoding', 'chunked']
    : ['Content-Length', String(framing)];
}

/**
 * Finds anything in a request's head that another parser could read differently.
 * @param options.mayUpgrade whether the port serves WebSockets
 * @param options.anyMethodHasBody whether bodies of methods that give them no meaning pass; only
 *   for a port that writes the framing of every one anew
 * @returns the fault, in words for the sender, or undefined
 */
export function findFramingFault(
  { httpVersion, method, rawHeaders }: RequestHead,
  { mayUpgrade = false, anyMethodHasBody = false } = {},
): string | undefined {
  if (httpVersion !== '1.1' && httpVersion !== '1.0') return 'use HTTP/1.1';
  const { lengths, encodings, upgrades, hosts } = framingValues(rawHeaders);
  const [length] = lengths;
  const [encoding] = encodings;
  if (lengths.length + encodings.length > 1) {
    return 'send one Content-Length or one Transfer-Encoding, not several';
  }
  if (length !== undefined && !LENGTH.test(length)) {
    return 'Content-Length must be a decimal number without sign or leading zeros';
  }
  if (encoding !== undefined && encoding.toLowerCase() !== 'chunked') {
    return 'Transfer-Encoding must be exactly "chunked"';
  }
  if (encoding !== undefined && httpVersion === '1.0') return 'HTTP/1.0 has no Transfer-Encoding';
  const hasBody = encoding !== undefined || (length !== undefined && length !== '0');
  if (hasBody && !anyMethodHasBody && !mayHaveBody(method))
    return `${method} takes no body; send none`;
  if (!mayUpgrade && upgrades.length > 0) {
    return 'this port speaks HTTP/1.1 only; send no Upgrade header';
  }
  if (hosts.length > 1) return 'send one Host header';
  return undefined;
}
