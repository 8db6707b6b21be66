import { type IncomingMessage, STATUS_CODES } from 'node:http';
import { headerKey } from '../../../shared/http/header-key.ts';
import { narrowCookie } from './narrow-cookie.ts';

/** Both spellings of the header that a port token comes in. */
export const TOKEN_HEADERS = ['x-service-token', 'x-archil-token'] as const;

// Headers of one connection only (RFC 9110, section 7.6.1), and those that are written anew.
const OF_CONNECTION = new Set([
  ...['connection', 'keep-alive', 'proxy-authenticate', 'proxy-authorization', 'proxy-connection'],
  ...['te', 'transfer-encoding', 'upgrade', 'http2-settings'],
]);
// With these, proxies tell servers the client's address and the URL that it asked for. Frameworks
// and middleware believe them, so that a caller may not write them. So is X-Forwarded-*.
const OF_PROXIES = [
  ...['forwarded', 'x-forwarded', 'forwarded-for', 'x-forward-for', 'x-original-forwarded-for'],
  ...['x-real-ip', 'x-client-ip', 'client-ip', 'true-client-ip', 'x-true-client-ip'],
  ...['x-cluster-client-ip', 'x-originating-ip', 'x-remote-ip', 'x-remote-addr', 'remote-addr'],
  ...['cf-connecting-ip', 'cf-connecting-ipv6', 'cf-pseudo-ipv4', 'fastly-client-ip'],
  ...['fly-client-ip', 'do-connecting-ip', 'x-nf-client-connection-ip', 'x-vercel-forwarded-for'],
  ...['x-azure-clientip', 'x-azure-socketip', 'x-appengine-user-ip', 'x-envoy-external-address'],
  ...['x-proxyuser-ip', 'proxy-client-ip', 'wl-proxy-client-ip', 'incap-client-ip'],
  ...['x-original-url', 'x-original-uri', 'x-original-host', 'x-original-proto', 'x-rewrite-url'],
  ...['cloudfront-viewer-address', 'x-arr-clientip', 'x-sucuri-clientip', 'cdn-real-ip'],
  ...[
    'x-envoy-original-path',
    'x-host',
    'x-http-host-override',
    'x-scheme',
    'x-url-scheme',
    'front-end-https',
  ],
];
const OF_REQUEST = new Set([
  ...OF_CONNECTION,
  ...['content-length', 'expect', 'trailer'],
  ...OF_PROXIES,
  ...TOKEN_HEADERS,
]);

/** Whether a header of a request is not for the guest, in whatever spelling. */
function isKeptBack(name: string): boolean {
  const key = headerKey(name);
  return OF_REQUEST.has(key) || key.startsWith('x-forwarded-');
}

/** Where a request came from, as the guest is told. */
export interface ClientFacts {
  /** IP address of the client, with those of trusted proxies behind it. */
  readonly forwardedFor: string;
  readonly proto: string;
  /** The hostname that the ingress went by; a proxy in front of it must pass that on. */
  readonly host: string;
}

const NAMES = /[^\s,]+/gu;

/** The headers that a Connection header names: they concern this connection only. */
function namedByConnection(value: string | undefined): ReadonlySet<string> | undefined {
  if (value === undefined || /^(?:keep-alive|close|upgrade)$/iu.test(value)) return undefined;
  return new Set(value.toLowerCase().match(NAMES) ?? []);
}

/** The other end of a connection. */
export interface Peer {
  readonly address: string;
  /** True for a proxy of the operator, whose words about clients count. */
  readonly isTrusted: boolean;
  readonly isSecure: boolean;
}

export function clientFacts(
  { headers }: Pick<IncomingMessage, 'headers'>,
  peer: Peer,
): ClientFacts {
  const own = {
    forwardedFor: peer.address,
    proto: peer.isSecure ? 'https' : 'http',
    host: headers.host ?? '',
  };
  if (!peer.isTrusted) return own;
  const { 'x-forwarded-for': before, 'x-forwarded-proto': proto } = headers;
  return {
    ...own,
    forwardedFor: typeof before === 'string' ? `${before}, ${peer.address}` : own.forwardedFor,
    proto: typeof proto === 'string' ? proto : own.proto,
  };
}

/** The headers of a request to the guest, names and values alternating. */
export function requestHeaders(
  { rawHeaders, headers }: Pick<IncomingMessage, 'rawHeaders' | 'headers'>,
  { forwardedFor, proto, host }: ClientFacts,
): string[] {
  const named = namedByConnection(headers.connection);
  const passed: string[] = [];
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const name = rawHeaders[i] ?? '';
    const lower = name.toLowerCase();
    if (isKeptBack(name) || (lower !== 'host' && named?.has(lower) === true)) continue;
    passed.push(name, rawHeaders[i + 1] ?? '');
  }
  passed.push('X-Forwarded-For', forwardedFor, 'X-Forwarded-Proto', proto);
  passed.push('X-Forwarded-Host', host);
  return passed;
}

/** The headers of a guest's answer to its caller. @param zone of the ingress, in lower case */
export function answerHeaders(rawHeaders: readonly string[], zone: string): string[] {
  let connection: string | undefined;
  for (let i = 0; i < rawHeaders.length; i += 2) {
    if (rawHeaders[i]?.toLowerCase() !== 'connection') continue;
    connection =
      connection === undefined ? rawHeaders[i + 1] : `${connection},${rawHeaders[i + 1]}`;
  }
  const named = namedByConnection(connection);
  const passed: string[] = [];
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const name = rawHeaders[i] ?? '';
    const lower = name.toLowerCase();
    if (OF_CONNECTION.has(lower) || named?.has(lower) === true) continue;
    const value = rawHeaders[i + 1] ?? '';
    passed.push(name, lower === 'set-cookie' ? narrowCookie(value, zone) : value);
  }
  return passed;
}

const REASON = /^[\t\x20-\x7E\x80-\xFF]*$/u;

/**
 * The reason phrase of a guest's answer, or the usual one in place of text that HTTP does not
 * allow.
 */
export const reasonOf = (status: number, message = ''): string =>
  REASON.test(message) ? message : (STATUS_CODES[status] ?? '');
