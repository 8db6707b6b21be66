import ipaddr from 'ipaddr.js';
import { isAllowed } from './ip-allowlist.ts';

const IPV6_PARTS_OF_SUBSCRIBER = 4;

/**
 * The party behind an address, for limits: an IPv4 address stands for itself, an IPv6 address for
 * its /64, since every subscriber has at least as many.
 */
export function addressKey(address: string): string {
  const parsed = ipaddr.process(address);
  if (!(parsed instanceof ipaddr.IPv6)) return parsed.toString();
  return `${parsed.parts
    .slice(0, IPV6_PARTS_OF_SUBSCRIBER)
    .map((part) => part.toString(16))
    .join(':')}::/64`;
}

/** The parties, none or one, that an address stands for in shares. @param proxies see `isProxy` */
export const addressParties = (proxies: readonly string[], address: string): string[] =>
  isProxy(proxies, address) ? [] : [`address ${addressKey(address)}`];

/** Whether the address is that of a proxy, behind which any number of clients may be. */
export const isProxy = (proxies: readonly string[], address: string): boolean =>
  proxies.length > 0 && isAllowed(proxies, address);
