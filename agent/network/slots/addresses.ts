import { isIPv4 } from 'node:net';

/*
 * The addresses between slots, router and host. They are of the range for tests of network devices
 * (RFC 2544), which no network is built of, and never leave the machine. Those of slots and router
 * are the same on every host, because each router has a namespace of its own.
 */

/** A network as `address/bits`. */
type Network = `${string}/${number}`;

export const NETWORKS = {
  /** The whole range. */
  all: '198.18.0.0/15',
  /** {@link SlotPlan.address} of the slots, and their {@link SlotPlan.proxiedAddress}. */
  slots: '198.18.0.0/20',
  proxied: '198.18.64.0/20',
  /** Pairs of addresses for the links between routers and host. */
  uplinks: '198.19.0.0/16',
} as const satisfies Record<string, Network>;

export const ROUTER_ADDRESS = '198.18.128.1';

export const toNumber = (address: string): number =>
  Buffer.from(address.split('.').map(Number)).readUInt32BE();

function toAddress(number: number): string {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(number);
  return bytes.join('.');
}

/** The address that follows the network's first one by `offset`. */
export const addressAfter = (network: Network, offset: number): string =>
  toAddress(toNumber(network.slice(0, network.indexOf('/'))) + offset);

/** Whether a text is an IPv4 network whose host part is zero, such as 10.1.0.0/16. */
export function isNetwork(text: string): text is Network {
  const [, address = '', bits = ''] = /^(.*)\/(\d|[12]\d|3[0-2])$/u.exec(text) ?? [];
  return isIPv4(address) && toNumber(address) % 2 ** (32 - Number(bits)) === 0;
}

/** A host's part of the names of its interfaces and namespaces: no other host has it. */
export const hostPart = (hostId: string): string => hostId.replace(/^host-/u, '');
