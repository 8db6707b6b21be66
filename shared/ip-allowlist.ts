import ipaddr from 'ipaddr.js';

/** An IPv4 address that arrived on an IPv6 socket (`::ffff:10.0.0.1`) counts as what it is. */
export const plainAddress = (text: string): string => ipaddr.process(text).toString();

/** Whether a list of addresses and CIDR blocks lets an address in; an empty list lets all in. */
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
