import ipaddr from 'ipaddr.js';

/** Normalises an address: one mapped into IPv6 (`::ffff:10.0.0.1`) becomes the IPv4 address. */
export const plainAddress = (text: string): string => ipaddr.process(text).toString();

/** Whether a list of addresses and CIDR blocks admits an address. An empty list admits all. */
export function isAllowed(allowedIps: readonly string[], address: string): boolean {
  if (allowedIps.length === 0) return true;
  const client = ipaddr.process(address);
  return allowedIps.some((entry) => {
    const [network, bits] = entry.includes('/')
      ? ipaddr.parseCIDR(entry)
      : [ipaddr.parse(entry), undefined];
    if (network.kind() !== client.kind()) return false;
    return bits === undefined
      ? network.toString() === client.toString()
      : client.match([network, bits]);
  });
}
