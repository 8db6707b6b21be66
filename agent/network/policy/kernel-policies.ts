import { toError } from '../../../shared/errors.ts';
import { parseJson } from '../../../shared/json.ts';
import type { Logger } from '../../../shared/log.ts';
import {
  type EgressRules,
  isKnownToProxy,
  needsProxy,
  toEgressRules,
} from '../../../shared/network/egress-rules.ts';
import type { NetworkDecision } from '../../../shared/schemas/network-decision.ts';
import type { NetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import { sha256 } from '../../../shared/secrets.ts';
import { MiB } from '../../../shared/units.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { HostGroups } from '../../system/helper-group.ts';
import { run } from '../../system/spawn.ts';
import { CLOSED_NETWORKS, PRIVATE_NETWORKS } from '../slots/closed-networks.ts';
import { endDaemon, keepDaemon } from '../slots/daemon.ts';
import { loadRules, NAMESPACES, NFT } from '../slots/nft.ts';
import { NAMES_PORT, PROXIED_MARK } from '../slots/router-plan.ts';
import type { SlotNamespaces } from '../slots/slot-namespace.ts';
import type { SlotPlan } from '../slots/slot.ts';
import { mergeDecisions, readDecisions, withSteadyTimes } from './decisions.ts';
import { learntElements, readLearnt } from './learnt-addresses.ts';
import { DECISIONS, TABLE } from './policy-names.ts';
import { policyRules, type PolicySurroundings, setsOf } from './policy-rules.ts';
import { resolverCommand } from './resolver-config.ts';
import type { LearntAddresses, PolicyProxy, SlotPolicies } from './slot-policies.ts';

/**
 * A slot whose policy needs the proxy also has a resolver of its own, which fills the rules' sets
 * of addresses. It listens on one of two ports: a new policy's resolver begins beside the present
 * one, and the rules switch to it, so that no question of the guest is lost.
 */
const SIDES = { a: 5301, b: 5302 } as const;
type Side = keyof typeof SIDES;

/** Names the set that says which policy is loaded, and which side its resolver has. */
const MARKER = /^policy_(?<print>[0-9a-f]{16})_(?<side>[abn])$/u;
const SETS_BYTES_MAX = 16 * MiB;

interface Loaded {
  readonly print: string;
  readonly side: Side | undefined;
}

interface Loading {
  readonly print: string;
  /** Names of the slot's sets. */
  readonly sets: readonly string[];
  readonly former: Side | undefined;
  readonly learnt: LearntAddresses;
}

interface Applied {
  /** Whether connections or questions of the slot may go to the egress proxy. */
  readonly isProxied: boolean;
  /** Counters of the slot when they were last read. */
  counted: readonly NetworkDecision[];
  readonly plan: SlotPlan;
  readonly sandboxId: string;
  readonly rules: EgressRules;
}

export interface KernelPoliciesOptions {
  readonly groups: HostGroups;
  readonly proxy: PolicyProxy;
  /** CIDRs of private networks that guests may reach. */
  readonly opened: readonly string[];
  readonly log: Logger;
}

/**
 * The rules of most sandboxes; slots are made with them, so that these sandboxes wait for no
 * program.
 */
const USUAL = toEgressRules({});

/** Policies as rules of the kernel and, where they name domains, a resolver for the slot. */
export class KernelPolicies implements SlotPolicies {
  readonly #groups: HostGroups;
  readonly #proxy: PolicyProxy;
  readonly #opened: readonly string[];
  readonly #log: Logger;
  /** By the slot's number. */
  readonly #applied = new Map<number, Applied>();
  /** Fingerprints of the policies that slots were made with, while these have no other. */
  readonly #madeWith = new Map<number, string>();
  /** Decisions that the kernel no longer counts, by sandbox. */
  readonly #former = new Map<string, NetworkDecision[]>();

  constructor({ groups, proxy, opened, log }: KernelPoliciesOptions) {
    this.#groups = groups;
    this.#proxy = proxy;
    this.#opened = opened;
    this.#log = log;
  }

  async apply(
    plan: SlotPlan,
    sandboxId: string,
    policy: NetworkPolicy,
    learnt: LearntAddresses = {},
  ): Promise<void> {
    const rules = toEgressRules(policy);
    const print = this.#fingerprint(plan, rules);
    if (this.#madeWith.get(plan.index) === print) {
      const counted = this.#applied.get(plan.index)?.counted ?? [];
      this.#applied.set(plan.index, { plan, sandboxId, rules, counted, isProxied: false });
      return;
    }
    const sets = await listSets(plan);
    const loaded = sets.map(toLoaded).find((each) => each !== undefined);
    // Connections that already go through the proxy obey a new policy that needs none, too.
    const wasUsual = loaded === undefined || loaded.print === this.#fingerprint(plan, USUAL);
    const isProxied = isKnownToProxy(rules) || !wasUsual;
    if (isProxied) await this.#proxy.setRules(plan, sandboxId, rules);
    if (loaded?.print === print) await this.#keepResolvers(plan, rules, loaded.side);
    else await this.#load(plan, rules, { print, sets, former: loaded?.side, learnt });
    const isSame = loaded?.print === print;
    const counted = (isSame ? this.#applied.get(plan.index)?.counted : undefined) ?? [];
    this.#applied.set(plan.index, { plan, sandboxId, rules, counted, isProxied });
  }

  async decisions(sandboxId: string): Promise<NetworkDecision[]> {
    const applied = this.#find(sandboxId);
    const proxied = applied?.isProxied === true ? await this.#proxy.decisions(applied.plan) : [];
    return mergeDecisions([...(await this.#decisionsOfKernel(sandboxId)), ...proxied]);
  }

  async drained(
    sandboxId: string,
    patterns: readonly string[],
    signal: AbortSignal,
  ): Promise<void> {
    const applied = this.#find(sandboxId);
    if (applied?.isProxied === true) await this.#proxy.drained(applied.plan, patterns, signal);
  }

  async learnt(plan: SlotPlan, policy: NetworkPolicy): Promise<LearntAddresses | undefined> {
    const rules = toEgressRules(policy);
    if (setsOf(rules).length === 0) return undefined;
    try {
      const shown = await within(plan, '-j', '-n', 'list', 'sets', 'inet');
      return readLearnt(shown, rules, Date.now());
    } catch (error) {
      this.#log.warn({ slot: plan.index, err: toError(error) }, 'policy:addressesLost');
      return undefined;
    }
  }

  certificate(sandboxId: string): Promise<string> {
    return this.#proxy.certificate(sandboxId);
  }

  forget(sandboxId: string): void {
    this.#former.delete(sandboxId);
  }

  /** Makes slots with the usual policy, and removes a slot's policy together with the slot. */
  withSlots(namespaces: SlotNamespaces): SlotNamespaces {
    return {
      ...namespaces,
      make: async (plan) => {
        const print = this.#fingerprint(plan, USUAL);
        const text = policyRules(USUAL, this.#surroundings(plan, undefined), {
          former: [],
          marker: markerOf(print, undefined),
        });
        await namespaces.make(plan, text);
        this.#madeWith.set(plan.index, print);
      },
      remove: async (plan) => {
        await this.#keepDecisions(plan, (sandboxId) => this.decisions(sandboxId));
        const isProxied = this.#applied.get(plan.index)?.isProxied ?? true;
        if (isProxied) await this.#proxy.removeRules(plan);
        this.#applied.delete(plan.index);
        this.#madeWith.delete(plan.index);
        await this.#endResolver(plan, 'a');
        await this.#endResolver(plan, 'b');
        await namespaces.remove(plan);
      },
    };
  }

  /** Loads a policy that is not loaded yet. */
  async #load(
    plan: SlotPlan,
    rules: EgressRules,
    { print, sets, former, learnt }: Loading,
  ): Promise<void> {
    await this.#keepDecisions(plan, (sandboxId) => this.#decisionsOfKernel(sandboxId));
    const side = needsProxy(rules) ? (former === 'a' ? 'b' : 'a') : undefined;
    if (side !== undefined) await this.#keepResolver(plan, rules, side);
    const surroundings = this.#surroundings(plan, side);
    const text = policyRules(rules, surroundings, {
      former: sets,
      marker: markerOf(print, side),
    });
    const elements = learntElements(rules, learnt, Date.now());
    this.#madeWith.delete(plan.index);
    await failpoint('load policy', () => loadRules(plan.namespace, `${text}${elements}`));
    if (former !== undefined) await this.#endResolver(plan, former);
  }

  async #keepResolvers(plan: SlotPlan, rules: EgressRules, side: Side | undefined): Promise<void> {
    for (const each of ['a', 'b'] as const) {
      if (each === side) await this.#keepResolver(plan, rules, each);
      else await this.#endResolver(plan, each);
    }
  }

  #keepResolver(plan: SlotPlan, rules: EgressRules, side: Side): Promise<void> {
    const { namespace, gatewayAddress, routerAddress } = plan;
    return keepDaemon(this.#groups, {
      name: daemonName(plan, side),
      namespace,
      command: resolverCommand(rules, {
        ...{ address: gatewayAddress, port: SIDES[side], upstream: routerAddress },
        namesPort: NAMES_PORT,
      }),
    });
  }

  #endResolver(plan: SlotPlan, side: Side): Promise<void> {
    return endDaemon(this.#groups, daemonName(plan, side));
  }

  #surroundings({ routerAddress }: SlotPlan, side: Side | undefined): PolicySurroundings {
    return {
      ...{ routerAddress, proxiedMark: PROXIED_MARK, resolverPort: side && SIDES[side] },
      namesPort: NAMES_PORT,
      ...{ closed: CLOSED_NETWORKS, private: PRIVATE_NETWORKS, opened: this.#opened },
    };
  }

  /** A digest that is equal for policies with the same effect in the slot. */
  #fingerprint(plan: SlotPlan, rules: EgressRules): string {
    const surroundings = this.#surroundings(plan, needsProxy(rules) ? 'a' : undefined);
    const text = policyRules(rules, surroundings, { former: [], marker: '' });
    return sha256(text).slice(0, 16);
  }

  #find(sandboxId: string): Applied | undefined {
    return [...this.#applied.values()].find((each) => each.sandboxId === sandboxId);
  }

  /** Without those that the proxy still knows. */
  async #decisionsOfKernel(sandboxId: string): Promise<NetworkDecision[]> {
    const applied = this.#find(sandboxId);
    const present = applied === undefined ? [] : await readPresent(applied);
    return mergeDecisions([...present, ...(this.#former.get(sandboxId) ?? [])]);
  }

  /** Saves the kernel's decisions before their counters are removed. */
  async #keepDecisions(
    { index }: SlotPlan,
    read: (sandboxId: string) => Promise<NetworkDecision[]>,
  ): Promise<void> {
    const applied = this.#applied.get(index);
    if (applied === undefined) return;
    const { sandboxId } = applied;
    try {
      this.#former.set(sandboxId, await read(sandboxId));
    } catch (error) {
      this.#log.warn({ sandboxId, err: toError(error) }, 'policy:decisionsLost');
    }
  }
}

const daemonName = ({ index }: SlotPlan, side: Side): string => `resolver-${index}${side}`;

const markerOf = (print: string, side: Side | undefined): string =>
  `policy_${print}_${side ?? 'n'}`;

function toLoaded(set: string): Loaded | undefined {
  const { print, side } = MARKER.exec(set)?.groups ?? {};
  if (print === undefined) return undefined;
  return { print, side: side === 'a' || side === 'b' ? side : undefined };
}

const within = ({ namespace }: SlotPlan, ...args: string[]): Promise<string> =>
  run('nsenter', [`--net=${NAMESPACES}/${namespace}`, NFT, ...args], {
    outputBytesMax: SETS_BYTES_MAX,
  });

/** Names of the slot's sets. */
async function listSets(plan: SlotPlan): Promise<string[]> {
  const shown = parseJson(await within(plan, '-j', '-t', 'list', 'sets', 'inet'));
  const { nftables } = shown as { nftables: { set?: { name: string } }[] };
  return nftables.flatMap(({ set }) => (set === undefined ? [] : [set.name]));
}

async function readPresent(applied: Applied): Promise<readonly NetworkDecision[]> {
  const { plan, rules } = applied;
  const [family = '', table = ''] = TABLE.split(' ');
  const shown = await within(plan, '-j', '-n', 'list', 'set', family, table, DECISIONS);
  applied.counted = withSteadyTimes(readDecisions(shown, rules, Date.now()), applied.counted);
  return applied.counted;
}
