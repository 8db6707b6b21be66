import { runInBackground } from '../../../shared/background.ts';
import { toError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log.ts';
import { SerialQueue } from '../../system/queues/serial-queue.ts';
import { failpoint } from '../../system/failpoint.ts';
import type { HostGroups } from '../../system/helper-group.ts';
import { run } from '../../system/spawn.ts';
import { PROXIED_MARK, planRouter, type RouterPlan } from './router-plan.ts';
import { ROUTER_ADDRESS } from './addresses.ts';
import { removeHostTable, turnForwardingOn, wasForwardingOff } from './forwarding.ts';
import { configureLinks, loadRules, NFT, runWithin } from './nft.ts';
import { endResolver, hostResolvers, keepResolver } from './resolvers.ts';
import { hostRules, type Reachability, routerRules } from './router-rules.ts';
import { hasNamespace, slotsWithNamespace } from './slot-namespace.ts';
import { findUplink, joinUplink, makeUplink, removeUplink, type Uplink } from './uplink.ts';

/** Table of the route that delivers what the egress proxy is to judge. */
const PROXIED_ROUTES = 100;
const REFRESH_MS = 30_000;

/** Settings of guests' networks (docs/settings.md, Agent). */
export interface NetworkSettings {
  /** Resolvers; none: those of the host. */
  readonly resolvers: readonly string[];
  /** CIDRs of private networks that guests may reach. */
  readonly reachable: readonly string[];
}

export interface RouterOptions {
  readonly hostId: string;
  readonly groups: HostGroups;
  readonly settings: NetworkSettings;
  /** Addresses, of now, that guests never reach: the host's, Redis, control nodes. */
  readonly clusterAddresses: () => Promise<readonly string[]>;
  readonly log: Logger;
}

// IPv6 is off before there is any link. A packet is taken only from the link its answer would go
// to.
const SETTINGS = [
  'set -e',
  'cd /proc/sys/net',
  'echo 1 > ipv4/ip_forward',
  'echo 1 > ipv4/conf/all/rp_filter',
  'echo 1 > ipv4/conf/default/rp_filter',
  'if [ -e ipv6 ]; then',
  '  echo 1 > ipv6/conf/all/disable_ipv6',
  '  echo 1 > ipv6/conf/default/disable_ipv6',
  'fi',
].join('\n');

/**
 * A connection that has ended keeps its entry for 120 s by default, which does not count against
 * the limit of its sandbox. All sandboxes share the table, so it forgets such connections sooner.
 */
const FORGET_SOON = 'echo 10 > /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait';

/**
 * The network namespace between the slots of this host and the host itself, with one link to it,
 * the resolver that sandboxes share, and the rules for what no sandbox may reach. It stays as long
 * as there are slots: the next agent takes it over, and connections through it go on.
 */
export class Router {
  readonly #options: RouterOptions;
  readonly #plan: RouterPlan;
  readonly #updates = new SerialQueue();
  /** The source of the loaded rules, and the kernel's rendering of them at that time. */
  #applied = '';
  #shown = '';
  #forwardingWasOff = false;
  #timer: NodeJS.Timeout | undefined;

  private constructor(options: RouterOptions) {
    this.#options = options;
    this.#plan = planRouter(options.hostId);
  }

  /** Makes the router of this host, or takes over the one that a former agent left. */
  static async open(options: RouterOptions): Promise<Router> {
    const router = new Router(options);
    await router.refresh();
    router.#timer = setInterval(() => router.#refreshLater(), REFRESH_MS);
    return router;
  }

  /** Repairs what is broken, and learns which addresses and resolvers are in use now. */
  refresh(): Promise<void> {
    return this.#updates.add(() => this.#update());
  }

  /** Removes the router unless a slot needs it. Close the slots' pool before. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#updates.idle;
    const { hostId, groups } = this.#options;
    if ((await slotsWithNamespace(hostId)).length === 0) await removeRouter(hostId, groups);
  }

  #refreshLater(): void {
    runInBackground('router.refresh', async () => {
      try {
        await this.refresh();
      } catch (error) {
        this.#options.log.error({ err: toError(error) }, 'router:refreshFailed');
      }
    });
  }

  /** Makes what is missing, and loads the rules when something has changed that they depend on. */
  async #update(): Promise<void> {
    const { hostId, groups } = this.#options;
    const reachability = await this.#reachability();
    const uplink = await this.#keepUplink(hostId);
    const wanted = JSON.stringify([reachability, uplink]);
    // Others may have flushed the host's rules, as a firewall does that is started again.
    if (wanted !== this.#applied || (await this.#show()) !== this.#shown) {
      await this.#load(reachability, uplink);
      if (reachability.resolvers.length === 0) this.#options.log.warn('router:noResolvers');
      this.#applied = wanted;
      this.#shown = await this.#show();
    }
    await turnForwardingOn();
    await keepResolver(groups, this.#plan, reachability.resolvers);
  }

  async #reachability(): Promise<Reachability> {
    const { settings, clusterAddresses } = this.#options;
    const resolvers = settings.resolvers.length > 0 ? settings.resolvers : await hostResolvers();
    const cluster = [...new Set(await clusterAddresses())].toSorted();
    return { opened: settings.reachable, cluster, resolvers };
  }

  async #keepUplink(hostId: string): Promise<Uplink> {
    if (!(await hasNamespace(this.#plan.namespace))) {
      // A namespace without a name would last as long as the resolver in it.
      await endResolver(this.#options.groups);
      await makeNamespace(this.#plan);
    }
    const found = await findUplink(this.#plan);
    if (found !== undefined) return found;
    this.#applied = '';
    // Nothing passes before both sides have their rules.
    await loadRules(this.#plan.namespace, routerRules(this.#plan, CLOSED));
    await configureNamespace(this.#plan);
    return makeUplink(hostId, this.#plan);
  }

  /** The rules as the kernel has them, where they are. */
  async #show(): Promise<string> {
    const { hostTable, namespace } = this.#plan;
    return (await showTable(undefined, hostTable)) + (await showTable(namespace, 'berth'));
  }

  async #load(reachability: Reachability, uplink: Uplink): Promise<void> {
    this.#forwardingWasOff ||= await wasForwardingOff();
    const forwardingWasOff = this.#forwardingWasOff;
    const { routerAddress: address } = uplink;
    const { resolvers } = reachability;
    await failpoint('load router rules', async () => {
      const plan = this.#plan;
      await loadRules(undefined, hostRules(plan, { address, resolvers, forwardingWasOff }));
      await loadRules(plan.namespace, routerRules(plan, reachability));
      await runWithin(plan.namespace, ['sh', '-c', FORGET_SOON]);
    });
    await joinUplink(this.#plan, uplink);
  }
}

const showTable = (namespace: string | undefined, table: string): Promise<string> =>
  runWithin(namespace, [NFT, 'list', 'table', 'inet', table]).catch(() => '');

const CLOSED: Reachability = { opened: [], cluster: [], resolvers: [] };

async function makeNamespace({ namespace }: RouterPlan): Promise<void> {
  await failpoint('make router', () => run('ip', ['netns', 'add', namespace]));
}

/** Idempotent, because a former agent may have ended in between. */
async function configureNamespace({ namespace }: RouterPlan): Promise<void> {
  await failpoint('configure router', async () => {
    await runWithin(namespace, ['sh', '-c', SETTINGS]);
    await configureLinks(namespace, [
      'link set lo up',
      `address replace ${ROUTER_ADDRESS}/32 dev lo`,
      `route replace local default dev lo table ${PROXIED_ROUTES}`,
    ]);
    const rules = await run('ip', ['-n', namespace, 'rule', 'show']);
    if (rules.includes(`lookup ${PROXIED_ROUTES}`)) return;
    await configureLinks(namespace, [`rule add fwmark ${PROXIED_MARK} lookup ${PROXIED_ROUTES}`]);
  });
}

/** Removes everything of a host's router from the machine, however far it was made. Idempotent. */
export async function removeRouter(hostId: string, groups: HostGroups): Promise<void> {
  const plan = planRouter(hostId);
  // Last goes the namespace, by which the next agent learns that there is something to remove.
  if (!(await hasNamespace(plan.namespace))) return;
  await failpoint('remove router', async () => {
    await endResolver(groups);
    await removeUplink(plan);
    await failpoint('remove host table', () => removeHostTable(plan));
    await run('ip', ['netns', 'delete', plan.namespace]);
  });
}
