import { hostPart } from './addresses.ts';

/** Names of a host's router, all computed from the host's id. */
export interface RouterPlan {
  readonly namespace: string;
  /** The host's end of the uplink, and the router's. */
  readonly hostLink: string;
  readonly uplink: string;
  /** The only table of the host's own that is ours. */
  readonly hostTable: string;
}

/** Where the egress proxy listens, transparently, in the router's namespace. */
export const EGRESS_PORT = 3129;
/** Where the egress proxy answers questions for names that are not to be looked up. */
export const NAMES_PORT = 3130;
/** Slots set it on packets that are to come from their `proxiedAddress`. */
export const PROXIED_MARK = 1;
/** The router's links to slots, as a pattern of nftables. */
export const SLOT_LINKS = 's*';

export function planRouter(hostId: string): RouterPlan {
  const part = hostPart(hostId);
  return {
    namespace: `berth-${part}-router`,
    hostLink: `bu-${part}`, // 15 characters, as many as a name may have.
    uplink: 'uplink',
    hostTable: `berth_${part}`,
  };
}
