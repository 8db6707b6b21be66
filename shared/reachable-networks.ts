import ipaddr from 'ipaddr.js';

const PORT_MAX = 65_535;

interface NamedNetwork {
  readonly range: ReturnType<typeof ipaddr.parseCIDR>;
  /** Undefined: every port. */
  readonly port: number | undefined;
}

/** @returns undefined when the text is no network */
function parseNetwork(text: string): NamedNetwork | undefined {
  const [, network = '', digits] = /^([^/]+\/\d{1,3})(?::(\d{1,5}))?$/u.exec(text) ?? [];
  if (!ipaddr.isValidCIDR(network)) return undefined;
  const port = digits === undefined ? undefined : Number(digits);
  if (port !== undefined && (port < 1 || port > PORT_MAX)) return undefined;
  return { range: ipaddr.parseCIDR(network), port };
}

/**
 * Whether a text is a network such as `10.1.0.0/16` or `fd00::/8`, or one port of a network, such
 * as `127.0.0.1/32:9000` or `::1/128:9000`.
 */
export const isReachableNetwork = (text: string): boolean => parseNetwork(text) !== undefined;

/** The port that a URL leads to. */
export const portOf = ({ protocol, port }: URL): number =>
  port === '' ? (protocol === 'https:' ? 443 : 80) : Number(port);

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
  readonly #networks: readonly NamedNetwork[];

  /** @param networks as {@link isReachableNetwork} takes them; others are left out */
  constructor(networks: readonly string[]) {
    this.#networks = networks.flatMap((text) => parseNetwork(text) ?? []);
  }

  /** @param text an address without brackets */
  allows(text: string, port: number): boolean {
    if (!ipaddr.isValid(text)) return false;
    const address = ipaddr.process(text); // An IPv4 address in IPv6 is judged as what it is.
    if (isPublic(address)) return true;
    return this.isNamed(text, port);
  }

  /** Whether the operator named a network that the address is of, with this port or with all. */
  isNamed(text: string, port: number): boolean {
    if (!ipaddr.isValid(text)) return false;
    const address = ipaddr.process(text);
    return this.#networks.some(
      ({ range: [network, bits], port: only }) =>
        (only === undefined || only === port) &&
        network.kind() === address.kind() &&
        address.match([network, bits] as never),
    );
  }
}
