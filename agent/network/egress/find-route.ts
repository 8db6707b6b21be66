import {
  type Brokering,
  type EgressRules,
  isByName,
  judge,
  mayResolve,
} from '../../../shared/network/egress-rules.ts';
import { matchesAddress, matchesName } from '../../../shared/network/egress-target.ts';
import type { AddressGuard } from './address-guard.ts';
import { FIXED_RULES } from './egress-settings.ts';
import type { Names } from './resolver.ts';

/**
 * The destination that a guest asks for: a name, if one is, and the address that the guest
 * connected to.
 */
export interface Destination {
  readonly name: string | undefined;
  readonly address: string;
  /**
   * Why a connection to a port of TLS or HTTP has no name, although what follows may be for any
   * site of the address: its first bytes cannot be read, or its ClientHello has none.
   */
  readonly hides?: 'everything' | 'name' | undefined;
}

/** How a connection or a request was judged. */
export interface Route {
  /** Where it may go; empty when it is denied. */
  readonly addresses: readonly string[];
  /** The rule's text, `default`, or one of FIXED_RULES. */
  readonly rule: string;
  readonly brokering: Brokering | undefined;
}

interface Judges {
  readonly rules: EgressRules;
  readonly guard: AddressGuard;
  readonly resolver: Names;
}

const denied = (rule: string): Route => ({ addresses: [], rule, brokering: undefined });

/**
 * Judges a destination and finds the addresses that it may be reached at. Where a name decides,
 * they are addresses of that name, whatever address the guest gave: a false name gains nothing.
 * @throws Error when the resolver does not answer
 */
export async function findRoute(judges: Judges, destination: Destination): Promise<Route> {
  const { rules, guard } = judges;
  const { name, address } = destination;
  const { isAllowed, rule, brokering } = judge(rules, name, address);
  if (!isAllowed) return denied(rule);
  if (name === undefined) return routeUnnamed(judges, destination, rule);
  if (!isDecidedByName(rules, name, rule)) {
    return guard.isClosed(address)
      ? denied(FIXED_RULES.closed)
      : { addresses: [address], rule, brokering };
  }
  const addresses = await reachable(judges, name);
  if (addresses.length === 0) return denied(FIXED_RULES.unresolved);
  // The guest's own choice comes first, as far as it is one.
  const preferred = addresses.toSorted((a, b) => Number(b === address) - Number(a === address));
  return { addresses: preferred, rule, brokering };
}

/** The addresses of a name that the policy lets through for it. */
async function reachable({ rules, guard, resolver }: Judges, name: string): Promise<string[]> {
  if (!mayResolve(rules, name)) return [];
  const found = await resolver.resolve(name);
  return found.filter((each) => !guard.isClosed(each) && judge(rules, name, each).isAllowed);
}

/**
 * A name counts when a rule of its own allowed it, or when another name could be hidden behind it.
 */
function isDecidedByName({ allow, deny }: EgressRules, name: string, rule: string): boolean {
  const allowing = allow.find(({ text }) => text === rule);
  return (allowing !== undefined && matchesName(allowing.target, name)) || deny.some(isByName);
}

/**
 * Without a name the address decides, unless a denied name has it. Of subdomains nobody knows the
 * addresses. Where clients name their host, only plain HTTP whose Host is an address gets past
 * {@link mayLeadAround}.
 */
async function routeUnnamed(
  { rules, guard, resolver }: Judges,
  destination: Destination,
  rule: string,
): Promise<Route> {
  const { address } = destination;
  if (guard.isClosed(address)) return denied(FIXED_RULES.closed);
  if (mayLeadAround(rules, destination)) return denied(FIXED_RULES.unnamed);
  const names = rules.deny.flatMap(({ target }) => (target.kind === 'domain' ? [target.name] : []));
  const hidden = await Promise.all(
    names.map(async (name) =>
      (await resolver.resolve(name)).includes(address) ? name : undefined,
    ),
  );
  const found = hidden.find((name) => name !== undefined);
  return found === undefined ? { addresses: [address], rule, brokering: undefined } : denied(found);
}

/**
 * Whether a hidden name could be one that a rule denies or brokers. Its address does not tell: a
 * content delivery network serves a name at more addresses than any resolver answers. A ClientHello
 * that can be read and has no name is for the address itself, which a rule of addresses may allow:
 * brokered names come before that rule, but have names.
 */
function mayLeadAround({ allow, deny }: EgressRules, { address, hides }: Destination): boolean {
  if (hides === undefined) return false;
  if (deny.some(isByName)) return true;
  if (!allow.some(({ brokering }) => brokering !== undefined)) return false;
  return hides === 'everything' || !allow.some(({ target }) => matchesAddress(target, address));
}

/**
 * The addresses of a host that a rule forwards requests to. The policy's owner chose it, so only
 * closed addresses are refused.
 */
export async function findForwardAddresses(
  { guard, resolver }: Omit<Judges, 'rules'>,
  host: string,
  isAddress: boolean,
): Promise<string[]> {
  const found = isAddress ? [host] : await resolver.resolve(host);
  return found.filter((address) => !guard.isClosed(address));
}
