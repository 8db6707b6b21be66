import assert from 'node:assert';
import { LIMITS } from '../../../shared/limits.ts';
import { addressAfter, hostPart, NETWORKS, ROUTER_ADDRESS } from './addresses.ts';

/** Names and addresses of a slot's network, all computed from host id and slot number. */
export interface SlotPlan {
  readonly index: number;
  /** Network namespace, unique on the machine; `ip netns` knows it by this name. */
  readonly namespace: string;
  /** The slot's interface to its guest: a tap, or one end of a veth pair for a container. */
  readonly tap: string;
  readonly guestAddress: string;
  readonly gatewayAddress: string;
  readonly prefixBits: number;
  readonly guestMac: string;
  readonly gatewayMac: string;
  readonly mtuBytes: number;
  /** The slot's interface to the host's router, and its other end there. */
  readonly uplink: string;
  readonly routerLink: string;
  /** The source address of the guest's connections, as the router sees them. */
  readonly address: string;
  /** The source address of connections that the egress proxy judges, as the router sees them. */
  readonly proxiedAddress: string;
  /** The slot's default gateway, where the host's shared resolver answers. */
  readonly routerAddress: string;
}

/*
 * Slots are separate namespaces, so names and addresses inside are the same in each: a guest
 * restored from memory can run in any slot, and its neighbour entry for the gateway stays valid.
 * The subnet is one that neither container engines nor clusters take by default.
 */
export const GUEST_MAC = '02:00:00:00:00:02';
/** The slot's end of the link to a virtual machine. */
export const SLOT_TAP = 'tap0';
const INSIDE = {
  tap: SLOT_TAP,
  guestAddress: '10.255.255.2',
  gatewayAddress: '10.255.255.1',
  prefixBits: 30,
  guestMac: GUEST_MAC,
  gatewayMac: '02:00:00:00:00:01',
  mtuBytes: 1500,
  uplink: 'up0',
  routerAddress: ROUTER_ADDRESS,
} as const;

/** Several agents may share a machine: the host's own part of the name keeps them apart. */
const prefixOf = (hostId: string): string => `berth-${hostPart(hostId)}-`;

const isIndex = (index: number): boolean =>
  Number.isInteger(index) && index >= 0 && index < LIMITS.slotsPerHostMax;

export function planSlot(hostId: string, index: number): SlotPlan {
  assert(isIndex(index), `there is no slot ${index}`);
  return {
    ...{ index, namespace: `${prefixOf(hostId)}${index}`, ...INSIDE },
    routerLink: `s${index}`,
    address: addressAfter(NETWORKS.slots, index),
    proxiedAddress: addressAfter(NETWORKS.proxied, index),
  };
}

/** The number of the slot whose namespace this is; undefined unless it is a slot of this host. */
export function slotOfNamespace(hostId: string, name: string): number | undefined {
  const prefix = prefixOf(hostId);
  const digits = name.startsWith(prefix) ? name.slice(prefix.length) : '';
  if (!/^(0|[1-9]\d{0,8})$/u.test(digits)) return undefined;
  return isIndex(Number(digits)) ? Number(digits) : undefined;
}
