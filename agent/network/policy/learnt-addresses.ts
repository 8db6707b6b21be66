import { isIPv4 } from 'node:net';
import { parseJson } from '../../../shared/json.ts';
import { NETWORK_LIMITS } from '../limits.ts';
import type { EgressRules } from '../../../shared/network/egress-rules.ts';
import { TABLE } from './policy-names.ts';
import { setsOf } from './policy-rules.ts';
import type { LearntAddresses } from './slot-policies.ts';

/*
 * Addresses in the sets of a slot's rules by name. A guest that continues in another slot may use
 * them without asking again.
 */

interface Element {
  readonly elem: { readonly val: string; readonly expires?: number };
}

interface Shown {
  readonly nftables: readonly {
    readonly set?: { readonly name: string; readonly elem?: readonly Element[] };
  }[];
}

/**
 * @param shown what `nft -j list sets` prints
 * @param now milliseconds since the epoch
 */
export function readLearnt(
  shown: string,
  rules: EgressRules,
  now: number,
): LearntAddresses | undefined {
  const known = new Set(setsOf(rules));
  const { nftables } = parseJson(shown) as Shown;
  const found = nftables.flatMap(({ set }) =>
    set === undefined || !known.has(set.name)
      ? []
      : (set.elem ?? []).map(({ elem: { val, expires = 0 } }) => ({
          ...{ set: set.name, address: val, until: Math.floor(now / 1000) + expires },
        })),
  );
  if (found.length === 0) return undefined;
  const kept = found
    .sort((a, b) => b.until - a.until)
    .slice(0, NETWORK_LIMITS.networkAddressesKeptMax);
  const learnt: Record<string, Record<string, number>> = {};
  for (const { set, address, until } of kept) (learnt[set] ??= {})[address] = until;
  return learnt;
}

/**
 * Adds the addresses to the sets of the rules: input for `nft -f` after that of the policy, which
 * has the sets.
 * @param now milliseconds since the epoch
 */
export function learntElements(rules: EgressRules, learnt: LearntAddresses, now: number): string {
  const lines = setsOf(rules).flatMap((set) => {
    const elements = Object.entries(learnt[set] ?? {}).flatMap(([address, until]) => {
      const seconds = Math.floor(until - now / 1000);
      return isIPv4(address) && seconds > 0 ? [`${address} timeout ${seconds}s`] : [];
    });
    return elements.length === 0 ? [] : [`add element ${TABLE} ${set} { ${elements.join(', ')} }`];
  });
  return lines.map((line) => `${line}\n`).join('');
}
