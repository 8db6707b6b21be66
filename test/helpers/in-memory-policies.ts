import type { LearntAddresses, SlotPolicies } from '../../agent/network/policy/slot-policies.ts';
import type { SlotPlan } from '../../agent/network/slots/slot.ts';
import type { NetworkDecision } from '../../shared/schemas/network-decision.ts';
import type { NetworkPolicy } from '../../shared/schemas/network-policy.ts';

/** Counters of each slot, without any network. */
export class InMemoryPolicies implements SlotPolicies {
  /** By the slot's number. */
  readonly applied = new Map<number, NetworkPolicy>();
  readonly known = new Map<string, NetworkDecision[]>();
  /** A gate at which a test may delay or fail an application. */
  applying: (policy: NetworkPolicy) => Promise<void> = () => Promise.resolve();

  /** Addresses of names, by the slot's number. */
  readonly addresses = new Map<number, LearntAddresses>();

  async apply(
    { index }: SlotPlan,
    _sandboxId: string,
    policy: NetworkPolicy,
    learnt?: LearntAddresses,
  ): Promise<void> {
    await this.applying(policy);
    this.applied.set(index, policy);
    if (learnt !== undefined) this.addresses.set(index, learnt);
  }

  async learnt({ index }: SlotPlan): Promise<LearntAddresses | undefined> {
    return this.addresses.get(index);
  }

  /** A gate at which a test may delay a pause. */
  draining: (signal: AbortSignal) => Promise<void> = () => Promise.resolve();

  drained(_sandboxId: string, _patterns: readonly string[], signal: AbortSignal): Promise<void> {
    return this.draining(signal);
  }

  certificate(sandboxId: string): Promise<string> {
    return Promise.resolve(`certificate of ${sandboxId}`);
  }

  async decisions(sandboxId: string): Promise<NetworkDecision[]> {
    return this.known.get(sandboxId) ?? [];
  }

  forget(sandboxId: string): void {
    this.known.delete(sandboxId);
  }
}
