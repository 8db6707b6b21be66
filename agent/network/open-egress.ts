import { readFile } from 'node:fs/promises';
import { LIMITS } from '../../shared/limits.ts';
import type { Logger } from '../../shared/log.ts';
import { EgressProxy } from './egress/egress-proxy.ts';
import { ROUTER_ADDRESS } from './slots/addresses.ts';
import { CLOSED_NETWORKS, PRIVATE_NETWORKS } from './slots/closed-networks.ts';
import { NAMESPACES } from './slots/nft.ts';
import type { NetworkSettings } from './slots/router.ts';
import { EGRESS_PORT, NAMES_PORT, planRouter } from './slots/router-plan.ts';
import { planSlot } from './slots/slot.ts';
import { type HostGroups, NETWORK_GROUP } from '../system/helper-group.ts';
import { paths } from '../system/paths.ts';

/** The control group of a host's egress proxy. */
export const egressGroup = ({ cgroups, cgroupParent }: HostGroups) => ({
  cgroups,
  group: `${cgroupParent}/${NETWORK_GROUP}/egress`,
});

export interface EgressParts {
  readonly hostId: string;
  readonly dataDir: string;
  readonly groups: HostGroups;
  readonly network: NetworkSettings;
  /** The first uid for machines. */
  readonly uidBase: number;
  /** A file; see SandboxSettings. */
  readonly trustedCertificates: string | undefined;
  /** Slots that sandboxes in the journal hold. */
  readonly leased: readonly number[];
  readonly log: Logger;
}

/** Opens the egress proxy of a host whose router is there. */
export async function openEgress(parts: EgressParts): Promise<EgressProxy> {
  const { hostId, dataDir, groups, network, uidBase, trustedCertificates, leased, log } = parts;
  return EgressProxy.open({
    proxy: {
      ...egressGroup(groups),
      control: paths.egressControl(dataDir),
      errorLog: paths.egressErrors(dataDir),
      port: EGRESS_PORT,
      names: { address: ROUTER_ADDRESS, port: NAMES_PORT },
      uid: uidBase + LIMITS.machineUsersMax - 1, // The last that a machine would get.
      namespacePath: `${NAMESPACES}/${planRouter(hostId).namespace}`,
    },
    settings: {
      ...{ closed: CLOSED_NETWORKS, private: PRIVATE_NETWORKS, opened: network.reachable },
      resolver: ROUTER_ADDRESS,
      trustedCertificates:
        trustedCertificates === undefined ? '' : await readFile(trustedCertificates, 'utf8'),
    },
    keyPath: paths.egressKey(dataDir),
    leased: leased.map((index) => planSlot(hostId, index)),
    log,
  });
}
