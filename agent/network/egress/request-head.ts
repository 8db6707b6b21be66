import type { IncomingMessage } from 'node:http';
import { isIPv4 } from 'node:net';
import {
  findFramingFault,
  framingHeaders,
  framingOf,
  framingToSend,
} from '../../../shared/http/http-framing.ts';
import { normalizeName } from '../../../shared/network/egress-target.ts';

/** For one hop only (RFC 9110, 7.6.1), or written anew. */
const OF_THE_HOP = new Set([
  'connection',
  'content-length',
  'expect',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
]);

export type RawHeader = readonly [name: string, value: string];

export function pairsOf(rawHeaders: readonly string[]): RawHeader[] {
  const pairs: RawHeader[] = [];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    pairs.push([rawHeaders[at] ?? '', rawHeaders[at + 1] ?? '']);
  }
  return pairs;
}

/** The headers that are for the other end, not for this hop alone. */
export function endToEnd(rawHeaders: readonly string[]): RawHeader[] {
  const pairs = pairsOf(rawHeaders);
  const named = pairs
    .filter(([name]) => name.toLowerCase() === 'connection')
    .flatMap(([, value]) =>
      value
        .toLowerCase()
        .split(',')
        .map((each) => each.trim()),
    );
  const dropped = new Set([...OF_THE_HOP, ...named]);
  dropped.delete('host');
  return pairs.filter(([name]) => !dropped.has(name.toLowerCase()));
}

/** Headers that say how the body of a forwarded request is delimited. */
export const bodyHeaders = (request: IncomingMessage): string[] =>
  framingHeaders(framingToSend(framingOf(request), request.method));

/** Whose site a request asks for. */
export interface RequestedHost {
  /** Undefined when it names an address, or nothing. */
  readonly name: string | undefined;
  readonly host: string;
}

/**
 * Reads whom a request is for.
 * @returns the problem with it, in words for the guest, when it cannot be forwarded
 */
export function readHost(request: IncomingMessage): RequestedHost | { readonly problem: string } {
  const fault = findFault(request);
  if (fault !== undefined) return { problem: fault };
  const host = request.headers.host ?? '';
  const [, bare = ''] = /^(.*?)(?::\d{1,5})?$/u.exec(host) ?? [];
  if (bare === '' || isIPv4(bare)) return { name: undefined, host };
  const name = normalizeName(bare);
  return name === undefined ? { problem: 'the Host header is not a valid host' } : { name, host };
}

function findFault(request: IncomingMessage): string | undefined {
  const { url = '', method = '' } = request;
  // Bodies are framed anew, so that any method may have one, and upgrades are decided elsewhere.
  const head = { httpVersion: request.httpVersion, rawHeaders: request.rawHeaders, method: 'POST' };
  const fault = findFramingFault(head, { mayUpgrade: true });
  if (fault !== undefined) return fault;
  const isAsterisk = method === 'OPTIONS' && url === '*';
  return url.startsWith('/') || isAsterisk ? undefined : 'give a path, not a URL';
}
