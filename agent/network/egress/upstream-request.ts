import type { ClientRequest, IncomingMessage } from 'node:http';
import { isIPv4 } from 'node:net';
import { headerKey } from '../../../shared/http/header-key.ts';
import { beginRequest, flushHead } from '../../../shared/http/send-request.ts';
import type { Brokering } from '../../../shared/network/egress-rules.ts';
import { toAddresses } from './connect.ts';
import { FIXED_RULES } from './egress-settings.ts';
import type { GuestConnection } from './guest-connection.ts';
import { PROXY_LIMITS } from './limits.ts';
import { bodyHeaders, endToEnd, type RawHeader, readHost } from './request-head.ts';
import type { Secrets } from './secrets.ts';

/** A request as it is to be sent on. */
export interface UpstreamRequest {
  readonly isSecure: boolean;
  /** Names the server, for TLS also its certificate. */
  readonly host: string;
  readonly port: number;
  readonly addresses: readonly string[];
  readonly method: string;
  readonly path: string;
  readonly headers: readonly RawHeader[];
  /** Secrets that must not come back; undefined when nothing was added. */
  readonly secrets: Secrets | undefined;
}

/** Why a request is not sent on. */
export interface Refusal {
  readonly status: 400 | 403 | 421 | 502;
  readonly problem: string;
}

export const isRefusal = (planned: UpstreamRequest | Refusal): planned is Refusal =>
  'problem' in planned;

const HTTPS_PORT = 443;
const FORWARDED_HOST = 'X-Forwarded-Host';
/**
 * Not sent on with secrets: in what a server encodes or cuts to pieces, they would not be found.
 */
const HIDING = [
  'accept-encoding',
  'accept-charset',
  'range',
  'if-range',
  'sec-websocket-extensions',
];

/** Judges a request and says where and how it goes on. @throws Error when no resolver answers */
export async function planRequest(
  connection: GuestConnection,
  request: IncomingMessage,
): Promise<UpstreamRequest | Refusal> {
  const { slot, address, port, tlsName } = connection;
  const asked = readHost(request);
  if ('problem' in asked) return { status: 400, problem: asked.problem };
  if (tlsName !== undefined && asked.name !== tlsName) {
    return { status: 421, problem: `this connection is for ${tlsName}` };
  }
  const { addresses, rule, brokering } = await slot.route({ name: asked.name, address }, port);
  if (addresses.length === 0) return refusalOf(asked.name ?? address, rule);
  if (brokering?.forwardUrl !== undefined) {
    const judged = { host: asked.name ?? address, url: new URL(brokering.forwardUrl) };
    return planForwarding(connection, request, brokering, judged);
  }
  const common = { host: asked.name ?? address, port, addresses, ...lineOf(request) };
  if (tlsName === undefined) {
    return { ...common, isSecure: false, headers: headersOf(request), secrets: undefined };
  }
  // The rules have changed since the connection began.
  if (brokering === undefined) return { status: 421, problem: 'connect again' };
  const headers = brokeredHeaders(headersOf(request), brokering);
  return { ...common, isSecure: true, headers, secrets: slot.secretsOf(brokering) };
}

const refusalOf = (host: string, rule: string): Refusal =>
  rule === FIXED_RULES.unresolved
    ? { status: 502, problem: `${host} has no address that may be reached` }
    : { status: 403, problem: `the network policy denies ${host} (rule: ${rule})` };

const lineOf = ({ method = 'GET', url = '/' }: IncomingMessage) => ({ method, path: url });

/** A request to an address of its rule instead; always over TLS. */
async function planForwarding(
  { slot }: GuestConnection,
  request: IncomingMessage,
  brokering: Brokering,
  { host, url }: { readonly host: string; readonly url: URL },
): Promise<UpstreamRequest | Refusal> {
  const { hostname } = url;
  const { method, path } = lineOf(request);
  if (url.pathname !== '/' && hasDotSegment(path)) {
    return { status: 400, problem: 'give a path without the segments . and ..' };
  }
  const addresses = await slot.forwardAddresses(hostname, isIPv4(hostname));
  if (addresses.length === 0) {
    return { status: 502, problem: 'the forward_url of the rule has no address' };
  }
  const headers = brokeredHeaders(forwardedHeaders(request, host), brokering);
  return {
    isSecure: true,
    host: hostname,
    port: url.port === '' ? HTTPS_PORT : Number(url.port),
    addresses,
    method,
    path: joinPaths(url, path),
    headers: [['Host', url.host], ...headers],
    secrets: slot.secretsOf(brokering),
  };
}

/**
 * Whether a path has `.` or `..` as a segment, also encoded, with `\` for `/`, or with parameters
 * or a fragment after it: servers read them differently, and one that resolves them could leave the
 * path that stands before.
 */
function hasDotSegment(path: string): boolean {
  const [asked = ''] = path.split('?');
  const segments = asked.replaceAll(/%2e/giu, '.').split(/[/\\]|%2f|%5c/iu);
  return segments.some((segment) => /^\.\.?(?:[;#]|%3b|$)/iu.test(segment));
}

/** The URL's path comes first, and its query is added to the request's. */
function joinPaths({ pathname, search }: URL, path: string): string {
  const [asked = '', ...query] = path === '*' ? [''] : path.split('?');
  const queries = [search.slice(1), query.join('?')].filter((each) => each !== '');
  const joined = pathname.replace(/\/$/u, '') + asked;
  return queries.length === 0 ? joined : `${joined}?${queries.join('&')}`;
}

const headersOf = (request: IncomingMessage): RawHeader[] => endToEnd(request.rawHeaders);

/** Headers in which a server behind a `forward_url` may look for the host that was asked for. */
const NAMING_HOST: ReadonlySet<string> = new Set(['host', headerKey(FORWARDED_HOST), 'forwarded']);

/**
 * The guest's headers with the host that was judged as `X-Forwarded-Host`. A server may act on that
 * header, so none of the guest's own text is in it.
 */
const forwardedHeaders = (request: IncomingMessage, host: string): RawHeader[] => [
  ...headersOf(request).filter(([name]) => !NAMING_HOST.has(headerKey(name))),
  [FORWARDED_HOST, host],
];

/** Headers of a rule replace those of the request, in whatever spelling. */
function brokeredHeaders(sent: readonly RawHeader[], { headers }: Brokering): RawHeader[] {
  const added = Object.entries(headers);
  const dropped = new Set([...HIDING, ...added.map(([name]) => headerKey(name))]);
  const kept = sent.filter(([name]) => !dropped.has(headerKey(name)));
  const isEncodingAdded = added.some(([name]) => name.toLowerCase() === 'accept-encoding');
  const plainAnswers: RawHeader[] = isEncodingAdded ? [] : [['Accept-Encoding', 'identity']];
  return [...kept, ...plainAnswers, ...added];
}

/**
 * Sends the head of a request; the body is the caller's to send.
 * @param extra headers of the hop
 */
export function openRequest(
  { slot }: GuestConnection,
  planned: UpstreamRequest,
  extra: readonly string[],
  { isFresh = false } = {},
): ClientRequest {
  const { isSecure, host, port, addresses, method, path, headers } = planned;
  const agents = isFresh ? slot.newUpstream() : slot.upstream;
  const options = {
    ...{ host, port, method, path, addresses, ...toAddresses(addresses) },
    headers: [...headers.flat(), ...extra],
    timeout: PROXY_LIMITS.idleMs,
  };
  const sent = beginRequest(isSecure, {
    ...options,
    agent: isSecure ? agents.secure : agents.plain,
  });
  flushHead(sent);
  sent.on('timeout', () => sent.destroy(new Error('the server does not answer')));
  return sent;
}

export const requestExtras = (request: IncomingMessage, isContinueAwaited: boolean): string[] => [
  ...bodyHeaders(request),
  ...(isContinueAwaited ? ['Expect', '100-continue'] : []),
];
