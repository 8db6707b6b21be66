import { AppError } from '../../../shared/errors.ts';
import { parseJson } from '../../../shared/json.ts';
import { parseNetworkPolicy, redactPolicy } from '../../../shared/network/parse-policy.ts';
import type { NetworkDecision } from '../../../shared/schemas/network-decision.ts';
import type { NetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import { reseal, type Ring, seal, unseal } from '../../../shared/secrets.ts';
import type { NameAddresses, SandboxRow } from '../../system/journal/sandbox-journal.ts';
import type { SlotPolicies } from '../../network/policy/slot-policies.ts';
import type { SlotPlan } from '../../network/slots/slot.ts';

/** A policy as the journal has it. */
export type StoredPolicy = Pick<SandboxRow, 'network' | 'networkSealed' | 'nameAddresses'>;

/** A stored policy and whose it is: secrets are sealed for one id. */
type OwnedPolicy = StoredPolicy & Pick<SandboxRow, 'id'>;

/** The policy of sandboxes without one, and on a host that gives them no network. */
const EVERYTHING: NetworkPolicy = { egress: { default: 'allow' } };
const NOTHING: NetworkPolicy = { egress: { default: 'deny' } };

/**
 * The network policies of this host's sandboxes, from their rows to their slots. A policy with
 * secrets is stored sealed, bound to its sandbox.
 */
export class SandboxPolicies {
  readonly #keys: Ring<Buffer>;
  readonly #slots: SlotPolicies | undefined;

  /**
   * @param keys 32 bytes each
   * @param slots undefined on a host that gives its sandboxes no network
   */
  constructor(keys: Ring<Buffer>, slots: SlotPolicies | undefined) {
    this.#keys = keys;
    this.#slots = slots;
  }

  /**
   * @param policy as `parseNetworkPolicy` returned it; undefined: whatever the host lets through
   * @throws AppError `not_enabled` when this host has no network for it
   */
  store(sandboxId: string, policy: NetworkPolicy | undefined): StoredPolicy {
    if (this.#slots === undefined && policy !== undefined) {
      throw new AppError(
        'not_enabled',
        'this host gives sandboxes no network: see SANDBOX_NETWORK',
      );
    }
    const stored = policy ?? (this.#slots === undefined ? NOTHING : EVERYTHING);
    const hasSecrets = stored.egress?.allow?.some((rule) => typeof rule !== 'string') ?? false;
    const sealed = (): string => seal(this.#keys, JSON.stringify(stored), contextOf(sandboxId));
    return { network: redactPolicy(stored), networkSealed: hasSecrets ? sealed() : undefined };
  }

  /** The policy of one sandbox or snapshot, stored for another. */
  copy(row: OwnedPolicy, sandboxId: string): StoredPolicy {
    const { network, networkSealed, nameAddresses } = row;
    if (networkSealed === undefined) return { network, networkSealed, nameAddresses };
    return { ...this.store(sandboxId, this.#open(row)), nameAddresses };
  }

  /**
   * Seals with the present key what a former one has sealed.
   * @returns the resealed policy for the row; undefined when the row is up to date
   * @throws Error when none of the keys has sealed it
   */
  reseal({ id, networkSealed }: OwnedPolicy): string | undefined {
    if (networkSealed === undefined) return undefined;
    try {
      return reseal(this.#keys, networkSealed, contextOf(id));
    } catch (cause) {
      const message = `the network policy of ${id} was sealed with a key that ENCRYPTION_KEY lacks`;
      throw new Error(`${message}: put it after the others`, { cause });
    }
  }

  /** Applies the row's policy to its slot. @throws Error when that fails */
  async apply(plan: SlotPlan, row: SandboxRow): Promise<void> {
    // A guest that boots asks for the addresses again.
    const learnt = row.state === 'pending_resume' ? row.nameAddresses : undefined;
    await this.#slots?.apply(plan, row.id, this.#open(row), learnt);
  }

  /**
   * The addresses of its policy's names that the guest of a sandbox may know.
   * @param plan its slot; undefined when it has none
   */
  async learnt(row: SandboxRow, plan: SlotPlan | undefined): Promise<NameAddresses | undefined> {
    return plan === undefined ? row.nameAddresses : this.#slots?.learnt(plan, this.#open(row));
  }

  /**
   * Resolves when no request to the targets of the policy's `drain_on_pause` is under way.
   * @throws the signal's reason, or an Error when that cannot be known
   */
  async drained({ id, network }: SandboxRow, signal: AbortSignal): Promise<void> {
    await this.#slots?.drained(id, network.egress?.drain_on_pause ?? [], signal);
  }

  /**
   * The certificate that the guest has to trust, as PEM; undefined unless the policy brokers
   * credentials.
   */
  async certificate({ id, networkSealed }: SandboxRow): Promise<string | undefined> {
    return networkSealed === undefined ? undefined : this.#slots?.certificate(id);
  }

  decisions(sandboxId: string): Promise<NetworkDecision[]> {
    return this.#slots?.decisions(sandboxId) ?? Promise.resolve([]);
  }

  forget(sandboxId: string): void {
    this.#slots?.forget(sandboxId);
  }

  #open({ id, network, networkSealed }: OwnedPolicy): NetworkPolicy {
    if (networkSealed === undefined) return parseNetworkPolicy(network);
    return parseNetworkPolicy(parseJson(unseal(this.#keys, networkSealed, contextOf(id))));
  }
}

const contextOf = (sandboxId: string): string => `network policy of ${sandboxId}`;
