import type { IncomingMessage } from 'node:http';
import ipaddr from 'ipaddr.js';
import { isProxy } from './address-key.ts';
import { plainAddress } from './ip-allowlist.ts';

const UNKNOWN = '0.0.0.0';

/** An address as proxies write it, some with a port after it. */
function readHop(text: string): string | undefined {
  const [, bracketed] = /^\[([^\]]+)\](?::\d{1,5})?$/u.exec(text) ?? [];
  const [, withoutPort] = /^([\d.]+):\d{1,5}$/u.exec(text) ?? [];
  const address = bracketed ?? withoutPort ?? text;
  const isWhole = address.includes(':') || ipaddr.IPv4.isValidFourPartDecimal(address);
  return isWhole && ipaddr.isValid(address) ? plainAddress(address) : undefined;
}

/** Clients of requests that a part of this process sends to itself. */
const spokenFor = new WeakMap<object, string>();

/** Says for which client a part of this process has sent a request to itself. */
export const speakFor = (request: IncomingMessage, address: string): void => {
  spokenFor.set(request, address);
};

/** Addresses of the other ends of connections, which send many requests. */
const peers = new WeakMap<object, string>();

function peerAddress(socket: { readonly remoteAddress?: string | undefined }): string {
  const known = peers.get(socket);
  if (known !== undefined) return known;
  const { remoteAddress } = socket;
  if (remoteAddress === undefined) return UNKNOWN; // The connection has ended.
  const address = plainAddress(remoteAddress);
  peers.set(socket, address);
  return address;
}

/**
 * The IP address of the client that sent a request. `X-Forwarded-For` counts as far as trusted
 * proxies wrote it: from its end, each proxy vouches for the address before its own. An entry that
 * is no address, and everything before the first address that is not a proxy's, may come from
 * anyone and does not count.
 * @param trusted addresses and CIDR blocks (TRUSTED_PROXIES)
 */
export function clientAddress(
  request: Pick<IncomingMessage, 'headers'> & {
    readonly socket: { readonly remoteAddress?: string | undefined };
  },
  trusted: readonly string[],
): string {
  const client = spokenFor.get(request);
  if (client !== undefined) return client;
  const { socket, headers } = request;
  let address = peerAddress(socket);
  if (!isProxy(trusted, address)) return address;
  const { 'x-forwarded-for': said } = headers;
  const hops = (Array.isArray(said) ? said.join(',') : (said ?? '')).split(',');
  for (const text of hops.toReversed()) {
    const hop = readHop(text.trim());
    if (hop === undefined) return address;
    address = hop;
    if (!isProxy(trusted, address)) return address;
  }
  return address;
}
