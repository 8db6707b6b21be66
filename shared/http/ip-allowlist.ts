import ipaddr from 'ipaddr.js';

/** Normalises an address: one mapped into IPv6 (`::ffff:10.0.0.1`) becomes the IPv4 address. */
export const plainAddress = (text: string): string => ipaddr.process(text).toString();

type Address = ReturnType<typeof ipaddr.parse>;

/** Leading bits of the IPv6 addresses into which those of IPv4 are mapped. */
const MAPPED_BITS = 96;

/**
 * An address, or a block with the length of its prefix. Those mapped into IPv6 are of IPv4, as the
 * addresses of clients are.
 */
export function parseNetwork(entry: string): readonly [address: Address, bits?: number] {
  if (!entry.includes('/')) return [ipaddr.process(entry)];
  const [address, bits] = ipaddr.parseCIDR(entry);
  const isMapped = address instanceof ipaddr.IPv6 && address.isIPv4MappedAddress();
  return isMapped && bits >= MAPPED_BITS
    ? [address.toIPv4Address(), bits - MAPPED_BITS]
    : [address, bits];
}

/** Whether a list of addresses and CIDR blocks admits an address. An empty list admits all. */
export function isAllowed(allowedIps: readonly string[], address: string): boolean {
  if (allowedIps.length === 0) return true;
  const client = ipaddr.process(address);
  return allowedIps.some((entry) => {
    const [network, bits] = parseNetwork(entry);
    if (network.kind() !== client.kind()) return false;
    return bits === undefined
      ? network.toString() === client.toString()
      : client.match([network, bits]);
  });
}
