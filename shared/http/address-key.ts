import ipaddr from 'ipaddr.js';
import { isAllowed } from './ip-allowlist.ts';

const IPV6_PARTS_OF_SUBSCRIBER = 4;

/** Keys by address: few addresses send most requests, and reading one takes microseconds. */
const known = new Map<string, string>();
const KNOWN_MAX = 1024;

/**
 * The party behind an address, for limits: an IPv4 address stands for itself, an IPv6 address for
 * its /64, since every subscriber has at least as many.
 */
export function addressKey(address: string): string {
  const found = known.get(address);
  if (found !== undefined) return found;
  const key = readKey(address);
  if (known.size >= KNOWN_MAX) known.clear();
  known.set(address, key);
  return key;
}

function readKey(address: string): string {
  const parsed = ipaddr.process(address);
  if (!(parsed instanceof ipaddr.IPv6)) return parsed.toString();
  return `${parsed.parts
    .slice(0, IPV6_PARTS_OF_SUBSCRIBER)
    .map((part) => part.toString(16))
    .join(':')}::/64`;
}

/**
 * The parties to count a client's address against in fair shares: none for a proxy, since any
 * number of clients may be behind it, otherwise the one that {@link addressKey} names.
 */
export const addressParties = (proxies: readonly string[], address: string): string[] =>
  isProxy(proxies, address) ? [] : [`address ${addressKey(address)}`];

/** @param proxies addresses and CIDR blocks of the operator's own proxies */
export const isProxy = (proxies: readonly string[], address: string): boolean =>
  proxies.length > 0 && isAllowed(proxies, address);
