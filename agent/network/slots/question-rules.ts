import { NETWORK_LIMITS } from '../limits.ts';
import { NAMES_PORT } from './router-plan.ts';
import type { SlotPlan } from './slot.ts';

/*
 * dnsmasq keeps a question for 10 s unless it is answered (TIMEOUT in its sources), and refuses new
 * ones while it has as many as `--dns-forward-max`, whoever asks. So each slot has its own limit.
 */
const UNANSWERED_SECONDS = 10;
/** Short: the kernel removes what has expired only once a second, and counts it until then. */
const ANSWERED = '100ms';
/**
 * Questions that reuse the port and the id of one under way: sent again, or new ones to dnsmasq.
 */
const REPEATED = '10/second burst 20 packets';
/** DNS queries that the name refuser answers NXDOMAIN; one process does so for all slots. */
const REFUSED = '50/second burst 500 packets';
/** Connections to the resolver over TCP. dnsmasq serves 20 at a time, whoever opened them. */
const TCP_MAX = 4;

/**
 * Rules that limit the questions of a slot that are under way, its own resolver's included: input
 * for `nft -f` in the slot's namespace, with a table of its own. Idempotent. A question is known by
 * the port that it comes from and by its id, the first 16 bits after the UDP header.
 */
export const questionRules = ({ uplink, routerAddress }: SlotPlan): string[] => [
  'table ip berth',
  'flush table ip berth',
  'table ip berth {',
  '  set asked {',
  '    typeof udp sport . @th,64,16',
  `    size ${NETWORK_LIMITS.dnsQuestionsPerSandboxMax}`,
  '    flags dynamic,timeout',
  `    timeout ${UNANSWERED_SECONDS}s`,
  '  }',
  '  chain asking {',
  '    type filter hook postrouting priority filter; policy accept;',
  `    oifname != "${uplink}" accept`,
  `    ip daddr != ${routerAddress} accept`,
  `    tcp dport { 53, ${NAMES_PORT} } ct state new ct count over ${TCP_MAX} drop`,
  `    meta l4proto { tcp, udp } th dport ${NAMES_PORT} limit rate over ${REFUSED} drop`,
  `    udp dport 53 udp sport . @th,64,16 @asked limit rate over ${REPEATED} drop`,
  '    udp dport 53 add @asked { udp sport . @th,64,16 } accept',
  '    udp dport 53 drop',
  '  }',
  '  chain answered {',
  '    type filter hook prerouting priority filter; policy accept;',
  `    iifname "${uplink}" ip saddr ${routerAddress} udp sport 53 udp dport . @th,64,16 @asked` +
    ` update @asked { udp dport . @th,64,16 timeout ${ANSWERED} }`,
  '  }',
  '}',
];
