import type { NetworkPolicy, RuleObject } from '../schemas/network-policy.ts';
import {
  type EgressTarget,
  matchesAddress,
  matchesName,
  parseTarget,
  targetText,
} from './egress-target.ts';

interface EgressRule {
  readonly target: EgressTarget;
  /** The target's normal form: names the rule in decisions. */
  readonly text: string;
}

/** The proxy's changes to the requests that a rule lets through. */
export interface Brokering {
  /** Secrets. Each replaces a header of that name that the guest sent. */
  readonly headers: Readonly<Record<string, string>>;
  /** An https URL that requests are sent to instead; it may be secret. */
  readonly forwardUrl: string | undefined;
}

interface AllowRule extends EgressRule {
  readonly brokering: Brokering | undefined;
}

/** A policy in the form in which connections are judged. */
export interface EgressRules {
  readonly default: 'allow' | 'deny';
  /** Whether only names that a rule allows are looked up. */
  readonly narrowsNames: boolean;
  readonly deny: readonly EgressRule[];
  /** Exact names before wildcards, longer wildcards before shorter ones: the first match counts. */
  readonly allow: readonly AllowRule[];
  /** Host names with `*` for any run of characters. */
  readonly drainPatterns: readonly string[];
}

export interface Verdict {
  readonly isAllowed: boolean;
  /** The rule's text, or `default`. */
  readonly rule: string;
  readonly brokering: Brokering | undefined;
}

/** @param policy as `parseNetworkPolicy` returned it */
export function toEgressRules({ egress }: NetworkPolicy): EgressRules {
  const allow = (egress?.allow ?? []).map(toAllowRule);
  return {
    default: egress?.default ?? 'allow',
    narrowsNames: egress?.default === 'deny' && egress.dns !== 'open',
    deny: (egress?.deny ?? []).map(toRule),
    allow: allow.toSorted((a, b) => specificity(b.target) - specificity(a.target)),
    drainPatterns: egress?.drain_on_pause ?? [],
  };
}

/** Whether ports 80 and 443 have to be judged by the names that clients ask for. */
export function needsProxy({ allow, deny, drainPatterns }: EgressRules): boolean {
  return drainPatterns.length > 0 || [...allow, ...deny].some(isByName);
}

/** Whether the egress proxy has to know of the rules, for connections or for names. */
export const isKnownToProxy = (rules: EgressRules): boolean =>
  rules.narrowsNames || needsProxy(rules);

/**
 * Whether a name may be looked up. Rules of addresses allow no names.
 * @param name normalised; `*.` and a name stands for those below it that no rule names
 */
export function mayResolve({ narrowsNames, deny, allow }: EgressRules, name: string): boolean {
  if (!narrowsNames) return true;
  const covers = ({ target }: EgressRule): boolean => matchesName(target, name);
  return allow.some(covers) && !deny.some(covers);
}

/** Whether a rule of this kind matches names, not addresses. */
export const isByName = ({ target }: EgressRule): boolean => target.kind !== 'network';

/**
 * Judges a connection: deny before allow before default.
 * @param name what the client asks for, normalised; undefined when it names no host
 * @param address where the connection would go, in dotted decimal
 */
export function judge(rules: EgressRules, name: string | undefined, address: string): Verdict {
  const matches = ({ target }: EgressRule): boolean =>
    matchesAddress(target, address) || (name !== undefined && matchesName(target, name));
  const denied = rules.deny.find(matches);
  if (denied !== undefined) return { isAllowed: false, rule: denied.text, brokering: undefined };
  const allowed = rules.allow.find(matches);
  if (allowed !== undefined) {
    return { isAllowed: true, rule: allowed.text, brokering: allowed.brokering };
  }
  return { isAllowed: rules.default === 'allow', rule: 'default', brokering: undefined };
}

function toRule(text: string): EgressRule {
  const target = parseTarget(text, 'rule');
  return { target, text: targetText(target) };
}

function toAllowRule(rule: string | RuleObject): AllowRule {
  if (typeof rule === 'string') return { ...toRule(rule), brokering: undefined };
  const { target, transform, forward_url: forwardUrl } = rule;
  return { ...toRule(target), brokering: { headers: transform?.headers ?? {}, forwardUrl } };
}

/** Names are longer than no name, and an exact one longer than any wildcard. */
function specificity(target: EgressTarget): number {
  if (target.kind === 'network') return 0;
  return target.kind === 'domain' ? Number.POSITIVE_INFINITY : target.name.length;
}
