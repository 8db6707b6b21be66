import { parseJson } from '../../../shared/json.ts';
import type { EgressRules } from '../../../shared/network/egress-rules.ts';
import type { NetworkDecision } from '../../../shared/schemas/network-decision.ts';
import { DECISION_SECONDS, ruleOfMark } from './policy-rules.ts';

/** How many kinds of connections one sandbox's log has. */
const KINDS_MAX = 2048;

/** An element of the set in which a slot counts connections, as `nft -j` shows it. */
interface Counted {
  readonly elem: {
    readonly val: { readonly concat: readonly [string, string, number | string, number] };
    readonly expires: number;
    readonly counter: { readonly packets: number };
  };
}

interface Shown {
  readonly nftables: readonly { readonly set?: { readonly elem?: readonly Counted[] } }[];
}

/** @param shown what `nft -j -n list set` prints of the set */
export function readDecisions(shown: string, rules: EgressRules, now: number): NetworkDecision[] {
  const { nftables } = parseJson(shown) as Shown;
  const elements = nftables.flatMap(({ set }) => set?.elem ?? []);
  return elements.flatMap(({ elem: { val, expires, counter } }) => {
    const [address, protocol, port, mark] = val.concat;
    const rule = ruleOfMark(rules, mark);
    const isUdp = protocol === 'udp' || Number(protocol) === 17;
    if (rule === undefined) return [];
    return [
      {
        time: new Date(now - (DECISION_SECONDS - expires) * 1000).toISOString(),
        address,
        protocol: isUdp ? ('udp' as const) : ('tcp' as const),
        port: Number(port),
        allowed: rule.isAllowed,
        rule: rule.text,
        count: Math.max(1, counter.packets),
      },
    ];
  });
}

const kindOf = (decision: NetworkDecision): string => {
  const { name, address, protocol, port, allowed, rule } = decision;
  return JSON.stringify([name, address, protocol, port, allowed, rule]);
};

/**
 * Keeps the time of each decision whose count is unchanged. The kernel reports times in whole
 * seconds relative to now, so computed times would drift a little with each reading.
 */
export function withSteadyTimes(
  decisions: readonly NetworkDecision[],
  before: readonly NetworkDecision[],
): NetworkDecision[] {
  const known = new Map(before.map((decision) => [kindOf(decision), decision]));
  return decisions.map((decision) => {
    const same = known.get(kindOf(decision));
    return same?.count === decision.count ? same : decision;
  });
}

/** Keeps an entry for each kind of connection, the newest first; the oldest kinds are dropped. */
export function mergeDecisions(decisions: readonly NetworkDecision[]): NetworkDecision[] {
  const kinds = new Map<string, NetworkDecision>();
  for (const decision of decisions.toSorted((a, b) => (a.time < b.time ? 1 : -1))) {
    const kind = kindOf(decision);
    const newer = kinds.get(kind);
    const count = (newer?.count ?? 0) + decision.count;
    kinds.set(kind, { ...(newer ?? decision), count });
  }
  return [...kinds.values()].slice(0, KINDS_MAX);
}
