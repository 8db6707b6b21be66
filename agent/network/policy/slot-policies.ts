import type { EgressRules } from '../../../shared/network/egress-rules.ts';
import type { NetworkDecision } from '../../../shared/schemas/network-decision.ts';
import type { NetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import type { SlotPlan } from '../slots/slot.ts';

/**
 * Addresses that the names of rules resolved to: by the set of the rule (policy-names.ts), with the
 * time until which each counts, in seconds since the epoch.
 */
export type LearntAddresses = Readonly<Record<string, Readonly<Record<string, number>>>>;

/** The part of the host's egress proxy that policies need (egress/egress-proxy.ts). */
export interface PolicyProxy {
  setRules(slot: SlotPlan, sandboxId: string, rules: EgressRules): Promise<void>;
  removeRules(slot: SlotPlan): Promise<void>;
  decisions(slot: SlotPlan): Promise<readonly NetworkDecision[]>;
  drained(slot: SlotPlan, patterns: readonly string[], signal: AbortSignal): Promise<void>;
  certificate(sandboxId: string): Promise<string>;
}

/** Has the slots of this host let through what the policies of their sandboxes say. */
export interface SlotPolicies {
  /**
   * Has a policy count for new connections of the slot from now on, all of it at once; connections
   * that were let through before go on. Idempotent, also after a crash half-way.
   * @param learnt counts from the start, if the policy does not count already
   * @throws Error when it does not count; what counted before then may, or parts of it
   */
  apply(
    plan: SlotPlan,
    sandboxId: string,
    policy: NetworkPolicy,
    learnt?: LearntAddresses,
  ): Promise<void>;
  /**
   * The addresses of a policy's names that count in its slot, at most `networkAddressesKeptMax`:
   * those that count longest. Undefined when there are none, or they cannot be read.
   */
  learnt(plan: SlotPlan, policy: NetworkPolicy): Promise<LearntAddresses | undefined>;
  /**
   * Resolves when no request of the sandbox to these hosts is under way through the egress proxy.
   * @param patterns host names with `*` for any run of characters
   * @throws the signal's reason, or an Error when the proxy does not answer
   */
  drained(sandboxId: string, patterns: readonly string[], signal: AbortSignal): Promise<void>;
  /** The certificate, as PEM, that the guest has to trust if the policy brokers credentials. */
  certificate(sandboxId: string): Promise<string>;
  /** Decisions about connections of the sandbox, as far as this agent knows. */
  decisions(sandboxId: string): Promise<NetworkDecision[]>;
  /** Forgets the decisions of a sandbox that is deleted. */
  forget(sandboxId: string): void;
}
