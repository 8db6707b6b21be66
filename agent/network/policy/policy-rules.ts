import { type EgressRules, isByName, needsProxy } from '../../../shared/network/egress-rules.ts';
import { DECISIONS, namedRules, setOf, TABLE } from './policy-names.ts';

/** A decision about a connection. Packets carry its place in the list while they are counted. */
export interface RuleName {
  readonly text: string;
  readonly isAllowed: boolean;
}

/** The sets that the rules use; the resolver fills those of names. */
export const setsOf = (rules: EgressRules): readonly string[] => {
  const { deny, allow } = namedRules(rules);
  return [
    ...new Set([
      ...deny.map((rule) => setOf('deny', rule)),
      ...allow.map((rule) => setOf('allow', rule)),
    ]),
  ];
};

/** Facts besides its rules that the policy of a slot depends on. */
export interface PolicySurroundings {
  /** The host's resolver, as guests reach it. */
  readonly routerAddress: string;
  /** Mark of connections that the egress proxy judges. */
  readonly proxiedMark: number;
  /** Networks that the router lets no guest reach: these, and those but for the opened ones. */
  readonly closed: readonly string[];
  readonly private: readonly string[];
  readonly opened: readonly string[];
  /** The port of the slot's own resolver, when the rules need one. */
  readonly resolverPort: number | undefined;
  /** The port of the router at which every name is refused, and counted. */
  readonly namesPort: number;
}

/** How many decisions a slot keeps, and for how long. */
const DECISIONS_MAX = 1024;
export const DECISION_SECONDS = 6 * 3600;
/** How many addresses the names of one rule may have, and for how long each counts. */
const ADDRESSES_MAX = 8192;
const ADDRESS_HOURS = 24;
/** The first mark of a rule; lower ones mean something to the slot's other chains. */
const FIRST_MARK = 0x100;
const CHAINS = ['egress', 'resolver', 'allowed', 'denied'] as const;
const PORTS = 'meta l4proto { tcp, udp }';

/** The rules that connections are counted for, in the order of their marks. */
const ruleNames = (rules: EgressRules): readonly RuleName[] => [
  { text: 'default', isAllowed: rules.default === 'allow' },
  { text: 'closed', isAllowed: false },
  { text: 'dns', isAllowed: false },
  { text: 'quic', isAllowed: false },
  ...rules.deny.map(({ text }) => ({ text, isAllowed: false })),
  ...rules.allow.map(({ text }) => ({ text, isAllowed: true })),
];

/** @returns undefined for a mark of no rule */
export const ruleOfMark = (rules: EgressRules, mark: number): RuleName | undefined =>
  ruleNames(rules)[mark - FIRST_MARK];

/**
 * The policy as rules of a slot: input for `nft -f`, which loads all of it at once. New connections
 * pass through the chain `egress`; those that were let through before do not.
 * @param former sets of the policy before, which are removed unless they are used again
 * @param marker names a set that says which policy this is
 */
export function policyRules(
  rules: EgressRules,
  surroundings: PolicySurroundings,
  { former, marker }: { readonly former: readonly string[]; readonly marker: string },
): string {
  const sets = setsOf(rules);
  const kept = new Set([...sets, marker, DECISIONS]);
  return [
    `table ${TABLE}`,
    ...CHAINS.flatMap((chain) => [`add chain ${TABLE} ${chain}`, `flush chain ${TABLE} ${chain}`]),
    ...former.filter((set) => !kept.has(set)).map((set) => `delete set ${TABLE} ${set}`),
    `add set ${TABLE} ${marker} { type ipv4_addr; }`,
    `add set ${TABLE} ${DECISIONS} { type ipv4_addr . inet_proto . inet_service . mark;` +
      ` flags dynamic,timeout; size ${DECISIONS_MAX}; timeout ${DECISION_SECONDS}s; }`,
    `flush set ${TABLE} ${DECISIONS}`, // Its marks are those of the policy before.
    ...sets.map(
      (set) =>
        `add set ${TABLE} ${set} { type ipv4_addr; flags timeout; size ${ADDRESSES_MAX};` +
        ` timeout ${ADDRESS_HOURS}h; }`,
    ),
    ...chainRules(rules, surroundings),
    '',
  ].join('\n');
}

const add = (chain: (typeof CHAINS)[number], rule: string): string =>
  `add rule ${TABLE} ${chain} ${rule}`;

function chainRules(rules: EgressRules, surroundings: PolicySurroundings): string[] {
  const { routerAddress, resolverPort, namesPort } = surroundings;
  // A rule ends where it finds the set full, so the verdict is a rule of its own.
  const count = `${PORTS} update @${DECISIONS} { ip daddr . meta l4proto . th dport . meta mark counter }`;
  const shared = rules.narrowsNames
    ? `${PORTS} dnat ip to ${routerAddress}:${namesPort}`
    : `dnat ip to ${routerAddress}`;
  const resolver = resolverPort === undefined ? shared : `${PORTS} redirect to :${resolverPort}`;
  return [
    add('allowed', count),
    add('allowed', 'meta mark set 0 accept'),
    add('denied', count),
    add('denied', 'meta mark set 0'),
    add('denied', 'reject with icmp type admin-prohibited'),
    add('resolver', resolver),
    ...egress(rules, surroundings).map((rule) => add('egress', rule)),
  ];
}

const setExpression = (networks: readonly string[]): string => `{ ${networks.join(', ')} }`;

/** Only for the list of decisions: the router would refuse them anyway. */
function closedMatches({ closed, private: inside, opened }: PolicySurroundings): string[] {
  const unlessOpened = opened.length === 0 ? '' : `ip daddr != ${setExpression(opened)} `;
  return [`ip daddr ${setExpression(closed)}`, `${unlessOpened}ip daddr ${setExpression(inside)}`];
}

const matchOf = (list: 'allow' | 'deny', rule: EgressRules['deny'][number]): string =>
  rule.target.kind === 'network'
    ? `ip daddr ${rule.target.cidr}`
    : `ip daddr @${setOf(list, rule)}`;

/** The chain that every new connection passes through, as one rule after the other. */
function egress(rules: EgressRules, surroundings: PolicySurroundings): string[] {
  const names = ruleNames(rules);
  const decide = (match: string, text: string, isAllowed: boolean): string => {
    const place = names.findIndex((name) => name.text === text && name.isAllowed === isAllowed);
    const verdict = isAllowed ? 'allowed' : 'denied';
    return `${match} meta mark set ${FIRST_MARK + place} goto ${verdict}`.trimStart();
  };
  const named = namedRules(rules);
  const byAddress = rules.deny.filter((rule) => !isByName(rule));
  const allowed = rules.allow.filter((rule) => !isByName(rule) || named.allow.includes(rule));
  return [
    'meta l4proto != { tcp, udp, icmp } drop',
    ...closedMatches(surroundings).map((match) => decide(match, 'closed', false)),
    ...byAddress.map((rule) => decide(matchOf('deny', rule), rule.text, false)),
    ...(needsProxy(rules)
      ? [
          // A guest that asked another resolver, or used QUIC, would get around rules by name.
          decide(`${PORTS} th dport { 53, 853 }`, 'dns', false),
          decide('udp dport { 80, 443 }', 'quic', false),
          `tcp dport { 80, 443 } meta mark set ${surroundings.proxiedMark} accept`,
        ]
      : []),
    ...named.deny.map((rule) => decide(matchOf('deny', rule), rule.text, false)),
    ...allowed.map((rule) => decide(matchOf('allow', rule), rule.text, true)),
    decide('', 'default', rules.default === 'allow'),
  ];
}
