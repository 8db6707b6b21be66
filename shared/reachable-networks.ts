import ipaddr from 'ipaddr.js';

/** Whether a text is a network such as 10.1.0.0/16 or fd00::/8. */
export const isCidr = (text: string): boolean => ipaddr.isValidCIDR(text);

/** The only addresses of IPv6 that IANA gives to hosts of the internet. */
const GLOBAL_IPV6 = ipaddr.IPv6.parseCIDR('2000::/3');
/**
 * IANA's IPv6 special-purpose address registry (as of 2025-10), as far as it lies in 2000::/3.
 * Ranges that it calls globally reachable are among them: anycast for the router nearby, tunnels,
 * identifiers, and sinks of DNS.
 */
const SPECIAL_IPV6 = [
  '2001::/23', // IETF protocols: Teredo, benchmarking, ORCHID, anycast of PCP and TURN …
  '2001:db8::/32', // Documentation.
  '2002::/16', // 6to4, with an IPv4 address inside.
  '2620:4f:8000::/48', // AS112.
  '3fff::/20', // Documentation.
].map((text) => ipaddr.IPv6.parseCIDR(text));

const isPublic = (address: ipaddr.IPv4 | ipaddr.IPv6): boolean =>
  address instanceof ipaddr.IPv4
    ? address.range() === 'unicast'
    : address.match(GLOBAL_IPV6) && !SPECIAL_IPV6.some((range) => address.match(range));

/**
 * Knows which addresses callers may have this cluster connect to: the public ones, and those of the
 * networks that the operator names.
 */
export class ReachableNetworks {
  readonly #networks: readonly ReturnType<typeof ipaddr.parseCIDR>[];

  /** @param networks CIDR blocks */
  constructor(networks: readonly string[]) {
    this.#networks = networks.map((text) => ipaddr.parseCIDR(text));
  }

  /** @param text an address without brackets */
  allows(text: string): boolean {
    if (!ipaddr.isValid(text)) return false;
    const address = ipaddr.process(text); // An IPv4 address in IPv6 is judged as what it is.
    if (isPublic(address)) return true;
    return this.isNamed(text);
  }

  /** Whether the operator named a network that the address is of. */
  isNamed(text: string): boolean {
    if (!ipaddr.isValid(text)) return false;
    const address = ipaddr.process(text);
    return this.#networks.some(
      ([network, bits]) =>
        network.kind() === address.kind() && address.match([network, bits] as never),
    );
  }
}
