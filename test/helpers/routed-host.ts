import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { pino } from 'pino';
import type { EgressProxy } from '../../agent/network/egress/egress-proxy.ts';
import { endProxy } from '../../agent/network/egress/start-proxy.ts';
import { egressGroup, openEgress } from '../../agent/network/open-egress.ts';
import { endResolver } from '../../agent/network/slots/resolvers.ts';
import { KernelPolicies } from '../../agent/network/policy/kernel-policies.ts';
import type { PolicyProxy } from '../../agent/network/policy/slot-policies.ts';
import { planRouter, type RouterPlan } from '../../agent/network/slots/router-plan.ts';
import { type NetworkSettings, removeRouter, Router } from '../../agent/network/slots/router.ts';
import { type SlotKind, slotNamespaces } from '../../agent/network/slots/slot-namespace.ts';
import type { SlotPool } from '../../agent/network/slots/slot-pool.ts';
import { detectCgroups, removeCgroups } from '../../agent/system/cgroup.ts';
import type { HostGroups } from '../../agent/system/helper-group.ts';
import type { Outside } from './outside.ts';
import { routerPartsOf } from './leaks.ts';
import { SlotHost } from './slots.ts';

const log = pino({ level: 'silent' });

interface RoutedSettings {
  readonly guestLink?: SlotKind['guestLink'];
  readonly settings?: Partial<NetworkSettings>;
  readonly cluster?: () => readonly string[];
  /** Where the egress proxy keeps its files; without it, there is none. */
  readonly proxyDir?: string;
}

/** Traffic of slots to the proxy is lost. */
const NO_PROXY: PolicyProxy = {
  setRules: () => Promise.resolve(),
  removeRules: () => Promise.resolve(),
  decisions: () => Promise.resolve([]),
  drained: () => Promise.resolve(),
  certificate: () => Promise.resolve(''),
};

/** A host for the test whose slots have a router. Disposing it removes both. */
export class RoutedHost implements AsyncDisposable {
  readonly slots = new SlotHost();
  readonly #groups: HostGroups;
  readonly #outside: Outside;
  readonly #options: RoutedSettings;
  #router: Router | undefined;
  #pool: SlotPool | undefined;
  #policies: KernelPolicies | undefined;
  #proxy: EgressProxy | undefined;

  private constructor(groups: HostGroups, outside: Outside, options: RoutedSettings) {
    this.#groups = groups;
    this.#outside = outside;
    this.#options = options;
  }

  static async open(outside: Outside, options: RoutedSettings = {}): Promise<RoutedHost> {
    const cgroupParent = `/berth-test-${randomBytes(4).toString('hex')}`;
    const host = new RoutedHost({ cgroups: await detectCgroups(), cgroupParent }, outside, options);
    try {
      await host.startAgent();
    } catch (error) {
      await host[Symbol.asyncDispose]();
      throw error;
    }
    return host;
  }

  get groups(): HostGroups {
    return this.#groups;
  }

  get hostId(): string {
    return this.slots.hostId;
  }

  get router(): RouterPlan {
    return planRouter(this.hostId);
  }

  /** Does the regular work of an agent. */
  async refresh(): Promise<void> {
    await this.#router?.refresh();
  }

  async killResolver(): Promise<void> {
    await endResolver(this.#groups);
  }

  /** Has the egress proxy's place taken by a listener that tells whose connection it got. */
  async listenTransparently(port: number): Promise<AsyncDisposable> {
    const program = new URL('../fixtures/transparent-listener.py', import.meta.url).pathname;
    const within = `--net=/run/netns/${this.router.namespace}`;
    const child = spawn('nsenter', [within, 'python3', program, String(port)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await once(child.stdout, 'data');
    return {
      async [Symbol.asyncDispose]() {
        const exited = once(child, 'exit');
        child.kill('SIGKILL');
        await exited;
      },
    };
  }

  /** Everything of its router on this computer. */
  left(): Promise<string[]> {
    return routerPartsOf(this.hostId);
  }

  get pool(): SlotPool {
    if (this.#pool === undefined) throw new Error('no agent is there');
    return this.#pool;
  }

  get policies(): KernelPolicies {
    if (this.#policies === undefined) throw new Error('no agent is there');
    return this.#policies;
  }

  /** Does the work of an agent that starts. @param leased slots that its journal knows */
  async startAgent(leased: readonly number[] = []): Promise<void> {
    const { settings, guestLink = 'tap', cluster = () => [] } = this.#options;
    this.#router = await Router.open({
      ...{ hostId: this.hostId, groups: this.#groups, log },
      settings: { resolvers: [this.#outside.resolver], reachable: [], ...settings },
      clusterAddresses: async () => cluster(),
    });
    const opened = settings?.reachable ?? [];
    this.#proxy = await this.#openProxy(leased);
    const policies = new KernelPolicies({
      ...{ groups: this.#groups, proxy: this.#proxy ?? NO_PROXY, opened, log },
    });
    this.#policies = policies;
    const namespaces = policies.withSlots(slotNamespaces({ guestLink, routerOf: this.hostId }));
    this.#pool = await this.slots.openPool({ readyMax: 0, slotsMax: 16, leased, namespaces });
  }

  /** Does the work of an agent that ends; leased slots stay. */
  async stopAgent(): Promise<void> {
    await this.#pool?.close();
    await this.#proxy?.close();
    await this.#router?.close();
  }

  async #openProxy(leased: readonly number[]): Promise<EgressProxy | undefined> {
    const { proxyDir: dataDir } = this.#options;
    if (dataDir === undefined) return undefined;
    return openEgress({
      ...{ hostId: this.hostId, dataDir, groups: this.#groups, leased, log },
      ...{ network: { resolvers: [], reachable: [] }, uidBase: 600_100_000 },
      trustedCertificates: undefined,
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stopAgent();
    await this.slots[Symbol.asyncDispose]();
    if (this.#proxy !== undefined) await endProxy(egressGroup(this.#groups));
    await removeRouter(this.hostId, this.#groups);
    await removeCgroups(this.#groups.cgroups, this.#groups.cgroupParent);
  }
}
