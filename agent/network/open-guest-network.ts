import type { Logger } from '../../shared/log.ts';
import { endProxy } from './egress/start-proxy.ts';
import { KernelPolicies } from './policy/kernel-policies.ts';
import { type NetworkSettings, removeRouter, Router } from './slots/router.ts';
import { slotNamespaces, type SlotNamespaces } from './slots/slot-namespace.ts';
import type { HostGroups } from '../system/helper-group.ts';
import { egressGroup, openEgress } from './open-egress.ts';

/** The network of a host's guests. */
export interface GuestNetwork {
  readonly namespaces: SlotNamespaces;
  /** Undefined when guests have none. */
  readonly policies: KernelPolicies | undefined;
  close(): Promise<void>;
}

export interface GuestNetworkParts extends HostGroups {
  readonly hostId: string;
  readonly dataDir: string;
  /** Undefined: guests reach nothing, and nothing reaches them. */
  readonly network: NetworkSettings | undefined;
  readonly guestLink: Parameters<typeof slotNamespaces>[0]['guestLink'];
  /** The first uid for machines. */
  readonly uidBase: number;
  /** A file; see SandboxSettings. */
  readonly trustedCertificates: string | undefined;
  /** Slots that sandboxes in the journal hold. */
  readonly leased: readonly number[];
  readonly clusterAddresses: () => Promise<readonly string[]>;
  readonly log: Logger;
}

/** Opens the router and the egress proxy of a host, or removes those of former settings. */
export async function openGuestNetwork(parts: GuestNetworkParts): Promise<GuestNetwork> {
  const { hostId, network, guestLink, cgroups, cgroupParent, log } = parts;
  const groups = { cgroups, cgroupParent };
  if (network === undefined) {
    await endProxy(egressGroup(groups));
    await removeRouter(hostId, groups);
    const namespaces = slotNamespaces({ guestLink, routerOf: undefined });
    return { namespaces, policies: undefined, close: async () => undefined };
  }
  const { clusterAddresses } = parts;
  const router = await Router.open({ hostId, groups, settings: network, clusterAddresses, log });
  const egress = await openEgress({ ...parts, groups, network });
  const policies = new KernelPolicies({
    ...{ groups, proxy: egress, opened: network.reachable, log },
  });
  const namespaces = policies.withSlots(slotNamespaces({ guestLink, routerOf: hostId }));
  return {
    namespaces,
    policies,
    async close() {
      await egress.close();
      await router.close();
    },
  };
}
