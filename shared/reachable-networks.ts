import ipaddr from 'ipaddr.js';

/** Whether a text is a network such as 10.1.0.0/16 or fd00::/8. */
export const isCidr = (text: string): boolean => ipaddr.isValidCIDR(text);

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
    if (address.range() === 'unicast') return true;
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
