import { NETWORKS, ROUTER_ADDRESS } from './addresses.ts';
import { CLOSED_NETWORKS, PRIVATE_NETWORKS } from './closed-networks.ts';
import {
  EGRESS_PORT,
  NAMES_PORT,
  PROXIED_MARK,
  type RouterPlan,
  SLOT_LINKS,
} from './router-plan.ts';

/** Facts besides its names that the rules of a router depend on. */
export interface Reachability {
  /** CIDRs of private networks that guests may reach. */
  readonly opened: readonly string[];
  /** Addresses that guests never reach: the host's, Redis, control nodes. */
  readonly cluster: readonly string[];
  /** Whom the shared resolver asks. */
  readonly resolvers: readonly string[];
}

const DNS = 'meta l4proto { tcp, udp } th dport 53';
const REFUSED_DNS = `meta l4proto { tcp, udp } th dport ${NAMES_PORT}`;
const PROHIBITED = 'reject with icmp type admin-prohibited';

function addressSet(name: string, elements: readonly string[], isOfNetworks = false): string[] {
  return [
    `  set ${name} {`,
    `    type ipv4_addr; ${isOfNetworks ? 'flags interval; auto-merge;' : ''}`,
    ...(elements.length === 0 ? [] : [`    elements = { ${elements.join(', ')} }`]),
    '  }',
  ];
}

function chain(name: string, hook: string | undefined, rules: readonly string[]): string[] {
  const type = hook === undefined ? [] : [`    type ${hook};`];
  return [`  chain ${name} {`, ...type, ...rules.map((rule) => `    ${rule}`), '  }'];
}

/** Replaces a table with all that it had, in one transaction with what follows. */
const replacing = (table: string): string[] => [`table ${table}`, `delete table ${table}`];

/**
 * The rules of a router: input for `nft -f` in its namespace, which may be loaded again at any
 * time, because the kernel knows of connections elsewhere. Slots are told apart by their links
 * alone.
 */
export function routerRules(
  { uplink }: RouterPlan,
  { opened, cluster, resolvers }: Reachability,
): string {
  const fromSlots = `iifname "${SLOT_LINKS}"`;
  return [
    ...replacing('inet berth'),
    'table inet berth {',
    ...addressSet('closed', CLOSED_NETWORKS, true),
    ...addressSet('private', PRIVATE_NETWORKS, true),
    ...addressSet('opened', opened, true),
    ...addressSet('cluster', cluster),
    ...addressSet('resolvers', resolvers),
    ...chain('reach', undefined, [
      `ip daddr @closed ${PROHIBITED}`,
      `ip daddr @cluster ${PROHIBITED}`,
      'ip daddr @opened accept',
      `ip daddr @private ${PROHIBITED}`,
      'meta nfproto ipv4 accept',
    ]),
    // Only a connection that the proxy listens for is marked, so that without it nothing goes on.
    ...chain('proxied', 'filter hook prerouting priority mangle; policy accept', [
      `${fromSlots} ip saddr ${NETWORKS.proxied} meta l4proto tcp` +
        ` tproxy ip to :${EGRESS_PORT} meta mark set ${PROXIED_MARK} accept`,
    ]),
    ...chain('input', 'filter hook input priority filter; policy drop', [
      'ct state established,related accept',
      'iifname "lo" accept',
      `${fromSlots} ip daddr ${ROUTER_ADDRESS} ${DNS} accept`,
      `${fromSlots} ip daddr ${ROUTER_ADDRESS} ${REFUSED_DNS} accept`,
      `${fromSlots} meta mark ${PROXIED_MARK} meta l4proto tcp accept`,
    ]),
    ...chain('forward', 'filter hook forward priority filter; policy drop', [
      'ct state established,related accept',
      'ct state invalid drop',
      `${fromSlots} oifname "${uplink}" ip saddr ${NETWORKS.slots} jump reach`,
    ]),
    ...chain('output', 'filter hook output priority filter; policy drop', [
      'ct state established,related accept',
      'oifname "lo" accept',
      `oifname "${SLOT_LINKS}" ${DNS} accept`,
      `oifname "${uplink}" ip daddr @resolvers ${DNS} accept`,
      `oifname "${uplink}" jump reach`,
    ]),
    ...chain('leaving', 'nat hook postrouting priority srcnat; policy accept', [
      `oifname "${uplink}" masquerade`,
    ]),
    '}',
    '',
  ].join('\n');
}

/** Says, in the host's table, that the host did not forward packets before it had a router. */
export const FORWARDING_WAS_OFF = 'forwarding_was_off';

/**
 * The rules of the host itself around a router's uplink: input for `nft -f` in the host's
 * namespace. Nothing from a router gets to the host but DNS for resolvers on it, and nothing from
 * elsewhere gets to a router.
 */
export function hostRules(
  { hostLink, hostTable }: RouterPlan,
  {
    address,
    resolvers,
    forwardingWasOff,
  }: {
    /** The router's address on the uplink. */
    readonly address: string;
    readonly resolvers: readonly string[];
    readonly forwardingWasOff: boolean;
  },
): string {
  const fromRouter = `iifname "${hostLink}"`;
  return [
    ...replacing(`inet ${hostTable}`),
    `table inet ${hostTable} {`,
    ...addressSet('resolvers', resolvers),
    ...(forwardingWasOff ? chain(FORWARDING_WAS_OFF, undefined, []) : []),
    ...chain('input', 'filter hook input priority filter - 10; policy accept', [
      `${fromRouter} ip saddr ${address} ip daddr @resolvers ${DNS} accept`,
      `${fromRouter} drop`,
    ]),
    ...chain('forward', 'filter hook forward priority filter - 10; policy accept', [
      `${fromRouter} meta nfproto != ipv4 drop`,
      `${fromRouter} ip saddr != ${address} drop`,
      `${fromRouter} oifname "bu-*" drop`,
      `${fromRouter} tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu`,
      `oifname "${hostLink}" ct state != { established, related } drop`,
    ]),
    ...chain('leaving', 'nat hook postrouting priority srcnat; policy accept', [
      `ip saddr ${address} oifname != "${hostLink}" masquerade`,
    ]),
    '}',
    '',
  ].join('\n');
}
