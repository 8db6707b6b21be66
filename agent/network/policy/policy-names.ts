import { sha256 } from '../../../shared/secrets.ts';
import { type EgressRules, isByName } from '../../../shared/network/egress-rules.ts';
import type { EgressTarget } from '../../../shared/network/egress-target.ts';

/* Names of a slot's policy that both its rules (nftables) and its resolver (dnsmasq) use. */

export const TABLE = 'inet berth';
export const DECISIONS = 'decisions';

type Rule = EgressRules['deny'][number];

/** The set of the addresses that a rule's names resolved to. */
export const setOf = (list: 'allow' | 'deny', { text }: Rule): string =>
  `${list}_${sha256(text).slice(0, 16)}`;

/** Rules whose names' addresses count beyond ports 80 and 443. */
export interface NamedRules {
  readonly deny: readonly Rule[];
  readonly allow: readonly Rule[];
}

/** Where everything is allowed, allowing a name changes nothing but what the proxy does. */
export const namedRules = (rules: EgressRules): NamedRules => ({
  deny: rules.deny.filter(isByName),
  allow: rules.default === 'deny' ? rules.allow.filter(isByName) : [],
});

/** The name at which a rule by name begins; its names are this one, those below it, or both. */
export const nameOf = (target: EgressTarget): string =>
  target.kind === 'network' ? '' : target.name;
