import type { NetworkDecision } from '../../../shared/schemas/network-decision.ts';
import type { NetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import type { SlotPlan } from '../slot.ts';

/** Has the slots of this host let through what the policies of their sandboxes say. */
export interface SlotPolicies {
  /**
   * Has a policy count for new connections of the slot from now on, all of it at once; connections
   * that were let through before go on. Idempotent, also after a crash half-way.
   * @throws Error when it does not count; what counted before then may, or parts of it
   */
  apply(plan: SlotPlan, sandboxId: string, policy: NetworkPolicy): Promise<void>;
  /** What was decided about connections of the sandbox, as far as this agent knows. */
  decisions(sandboxId: string): Promise<NetworkDecision[]>;
  /** Forgets the decisions of a sandbox that is deleted. */
  forget(sandboxId: string): void;
}
