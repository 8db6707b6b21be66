/** Addresses and names of a slot's network, all of them computed from its number. */
export interface SlotPlan {
  readonly index: number;
  /** Network namespace, unique on the machine; `ip netns` knows it by this name. */
  readonly namespace: string;
  readonly tap: string;
  readonly guestAddress: string;
  readonly gatewayAddress: string;
  readonly prefixBits: number;
  readonly guestMac: string;
  readonly mtuBytes: number;
}
