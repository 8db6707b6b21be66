import { NETWORK_LIMITS } from '../limits.ts';
import { questionRules } from './question-rules.ts';
import { NAMES_PORT, PROXIED_MARK } from './router-plan.ts';
import type { SlotPlan } from './slot.ts';

/**
 * A table whose chains drop everything. nft loads its input as one transaction, so no packet meets
 * half of the rules. The table is flushed rather than deleted: deleting chains waits for the kernel
 * even when there are none yet, and takes four times as long as everything else.
 */
const closedTable = (family: string, hooks: readonly string[]): string =>
  [
    `table ${family} berth`,
    `flush table ${family} berth`,
    `table ${family} berth {`,
    ...hooks.flatMap((hook) => [
      `  chain ${hook} {`,
      `    type filter hook ${hook} priority filter; policy drop;`,
      '  }',
    ]),
    '}',
    '',
  ].join('\n');

/**
 * Rules that let nothing into or out of a slot, ARP included: input for `nft -f` in the slot's
 * namespace. Idempotent.
 */
export const denyAll = (): string =>
  closedTable('inet', ['input', 'forward', 'output']) + closedTable('arp', ['input', 'output']);

const DNS = 'meta l4proto { tcp, udp } th dport 53';
/** Questions to the router: those to be answered, and those to be refused. */
const ROUTER_DNS = `meta l4proto { tcp, udp } th dport { 53, ${NAMES_PORT} }`;
const rateOf = (perSecond: number, burst: number): string =>
  `${perSecond}/second burst ${burst} packets`;
const DNS_RATE = rateOf(
  NETWORK_LIMITS.dnsPacketsPerSecondMax,
  NETWORK_LIMITS.dnsPacketsPerSecondMax,
);
const TCP_RATE = rateOf(
  NETWORK_LIMITS.newConnectionsPerSecondMax,
  NETWORK_LIMITS.newConnectionsBurstMax,
);
/**
 * Packets over TCP that begin no connection and belong to none: after a resume or in a fork. The
 * kernel takes them for a new connection, but the end of one for invalid.
 */
const STRAY = [
  'ct state new tcp flags & (fin | syn | rst) == 0',
  'ct state invalid tcp flags & (fin | syn | rst) == fin',
] as const;
const PROHIBITED = 'reject with icmp type admin-prohibited';

interface Chain {
  readonly type: 'filter' | 'nat';
  readonly hook: string;
  readonly priority: string;
  readonly policy: 'accept' | 'drop';
  readonly rules: readonly string[];
}

/**
 * Resets the connections of stray packets, wherever these go: before the policy, which would judge
 * them as new connections, so that the answer says nothing about it or about the other end. More
 * than new connections may come are dropped.
 */
const resets = (match: string): string[] =>
  STRAY.flatMap((stray) => [
    `${match} ${stray} limit rate ${TCP_RATE} reject with tcp reset`,
    `${match} ${stray} drop`,
  ]);

/** The chains of a slot that the kernel calls. None of them says what the guest may reach. */
function baseChains(plan: SlotPlan): Record<string, Chain> {
  const { tap, uplink, guestAddress, guestMac, gatewayAddress, routerAddress } = plan;
  const fromGuest = `iifname "${tap}"`;
  return {
    // Fragments have been put together before this priority.
    arriving: {
      ...{ type: 'filter', hook: 'prerouting', priority: 'raw', policy: 'accept' },
      rules: [
        `${fromGuest} meta nfproto != ipv4 drop`,
        `${fromGuest} ether saddr != ${guestMac} drop`,
        `${fromGuest} ip saddr != ${guestAddress} drop`,
        // The resolver is there for all sandboxes.
        `${fromGuest} ${DNS} limit rate over ${DNS_RATE} drop`,
      ],
    },
    resolving: {
      ...{ type: 'nat', hook: 'prerouting', priority: 'dstnat', policy: 'accept' },
      rules: [`${fromGuest} ip daddr ${gatewayAddress} ${DNS} jump resolver`],
    },
    input: {
      ...{ type: 'filter', hook: 'input', priority: 'filter', policy: 'drop' },
      rules: [
        'ct state established,related accept',
        ...resets(`${fromGuest} ip daddr ${gatewayAddress}`),
        // The policy's chain has sent it to the slot's own resolver.
        `${fromGuest} ip daddr ${gatewayAddress} meta l4proto { tcp, udp } ct status dnat accept`,
        `iifname "${uplink}" ip saddr ${routerAddress} ${DNS} accept`,
        // The server of the disks that the sandbox mounts, if it mounts any.
        `${fromGuest} ip daddr ${gatewayAddress} tcp dport ${NETWORK_LIMITS.nfsPort} accept`,
      ],
    },
    forward: {
      ...{ type: 'filter', hook: 'forward', priority: 'filter', policy: 'drop' },
      rules: [
        'ct state established,related accept',
        ...resets(fromGuest),
        'ct state invalid drop',
        // Each has an entry in the tables of router and host, which are there for all sandboxes.
        // The count leaves out TCP that has ended, although its entries stay for a while.
        `${fromGuest} meta l4proto tcp limit rate over ${TCP_RATE} drop`,
        `${fromGuest} ct count over ${NETWORK_LIMITS.connectionsPerSandboxMax} ${PROHIBITED}`,
        `${fromGuest} oifname "${uplink}" ct status dnat ip daddr ${routerAddress} ${ROUTER_DNS} accept`,
        `${fromGuest} oifname "${uplink}" jump egress`,
      ],
    },
    output: {
      ...{ type: 'filter', hook: 'output', priority: 'filter', policy: 'drop' },
      rules: [
        'ct state established,related accept',
        // The answer to a packet that the kernel took for invalid belongs to no connection either.
        `oifname "${tap}" ip daddr ${guestAddress} tcp flags & rst == rst accept`,
        // Packets for the guest's ports come from its gateway.
        `oifname "${tap}" ip saddr ${gatewayAddress} ip daddr ${guestAddress} meta l4proto tcp accept`,
        `oifname "${uplink}" ip daddr ${routerAddress} ${ROUTER_DNS} accept`,
      ],
    },
    leaving: {
      ...{ type: 'nat', hook: 'postrouting', priority: 'srcnat', policy: 'accept' },
      rules: [
        `oifname "${uplink}" meta mark ${PROXIED_MARK} snat ip to ${plan.proxiedAddress}`,
        `oifname "${uplink}" snat ip to ${plan.address}`,
      ],
    },
  };
}

const POLICY_CHAINS = ['egress', 'resolver'] as const;

/**
 * Rules of a slot around its policy: input for `nft -f` in the slot's namespace. Idempotent; what
 * the policy has in the chains `egress` (what the guest may reach, and whether through the egress
 * proxy, by {@link PROXIED_MARK}) and `resolver` (who answers its DNS) and in sets stays as it is.
 * Where these chains are empty, nothing gets out.
 */
export function slotRules(plan: SlotPlan): string {
  const chains = Object.entries(baseChains(plan));
  return [
    'table inet berth',
    ...POLICY_CHAINS.map((name) => `add chain inet berth ${name}`),
    ...chains.flatMap(([name, { type, hook, priority, policy, rules }]) => [
      `add chain inet berth ${name} { type ${type} hook ${hook} priority ${priority}; policy ${policy}; }`,
      `flush chain inet berth ${name}`,
      ...rules.map((rule) => `add rule inet berth ${name} ${rule}`),
    ]),
    'table arp berth',
    'flush table arp berth',
    'table arp berth {',
    '  chain input {',
    '    type filter hook input priority filter; policy accept;',
    `    iifname "${plan.tap}" arp saddr ip != ${plan.guestAddress} drop`,
    `    iifname "${plan.tap}" arp saddr ether != ${plan.guestMac} drop`,
    '  }',
    '  chain output { type filter hook output priority filter; policy accept; }',
    '}',
    ...questionRules(plan),
    '',
  ].join('\n');
}
