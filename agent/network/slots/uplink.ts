import { createHash } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { failpoint } from '../../system/failpoint.ts';
import { ProgramError, run } from '../../system/spawn.ts';
import { addressAfter, NETWORKS, toNumber } from './addresses.ts';
import { configureLinks } from './nft.ts';
import type { RouterPlan } from './router-plan.ts';
import { linkNames, showNetwork } from './show-network.ts';
import { showAddresses } from './slot-namespace.ts';

/** The two addresses of the link between a router and its host. */
export interface Uplink {
  readonly hostAddress: string;
  readonly routerAddress: string;
}

const PAIRS = 2 ** 15;
const ATTEMPTS = 64;

/** The pair of addresses that a host tries in its n-th attempt. */
function candidate(hostId: string, attempt: number): Uplink {
  const first = createHash('sha256').update(hostId).digest().readUInt32BE() + attempt;
  const offset = 2 * (first % PAIRS);
  return {
    hostAddress: addressAfter(NETWORKS.uplinks, offset),
    routerAddress: addressAfter(NETWORKS.uplinks, offset + 1),
  };
}

/** The uplink of a router, if it is whole on both sides. */
export async function findUplink(plan: RouterPlan): Promise<Uplink | undefined> {
  const [host, router] = await Promise.all([
    addressOf(undefined, plan.hostLink),
    addressOf(plan.namespace, plan.uplink),
  ]);
  const isWhole = host !== undefined && router !== undefined;
  return isWhole ? { hostAddress: host, routerAddress: router } : undefined;
}

async function addressOf(namespace: string | undefined, name: string): Promise<string | undefined> {
  const link = await showAddresses(namespace, name).catch(() => undefined);
  return link?.operstate === 'UP' ? link.addr_info[0]?.local : undefined;
}

/**
 * Makes the host's side of the link between router and host, with addresses that nothing else on
 * this machine has. Remains of an earlier link are removed.
 */
export async function makeUplink(hostId: string, plan: RouterPlan): Promise<Uplink> {
  await removeUplink(plan);
  const { hostLink, uplink, namespace } = plan;
  await failpoint('make uplink', async () => {
    await configureLinks(undefined, [
      `link add ${hostLink} type veth peer name ${uplink} netns ${namespace}`,
    ]);
    // Refused where the kernel has no IPv6.
    await writeFile(`/proc/sys/net/ipv6/conf/${hostLink}/disable_ipv6`, '1').catch(() => undefined);
    await configureLinks(undefined, [`link set ${hostLink} up`]);
  });
  const taken = await routedNetworks();
  for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
    const pair = candidate(hostId, attempt);
    if (taken.some((network) => covers(network, pair.hostAddress))) continue;
    if (await claimAddresses(plan, pair)) return pair;
  }
  throw new Error(`this machine has no free addresses for an uplink in ${NETWORKS.uplinks}`);
}

/** @returns false when another agent has taken the addresses meanwhile */
async function claimAddresses({ hostLink }: RouterPlan, pair: Uplink): Promise<boolean> {
  const { hostAddress, routerAddress } = pair;
  await configureLinks(undefined, [`address add ${hostAddress}/32 dev ${hostLink}`]);
  try {
    // The kernel refuses a second route to the same address.
    await configureLinks(undefined, [
      `route add ${routerAddress} dev ${hostLink} src ${hostAddress}`,
    ]);
    return true;
  } catch (error) {
    if (!(error instanceof ProgramError && error.message.includes('File exists'))) throw error;
    await configureLinks(undefined, [`address delete ${hostAddress}/32 dev ${hostLink}`]);
    return false;
  }
}

/** Opens the link from the router's side, once the host has its rules for it. */
export async function joinUplink(plan: RouterPlan, pair: Uplink): Promise<void> {
  const { hostAddress, routerAddress } = pair;
  await failpoint('join uplink', () =>
    configureLinks(plan.namespace, [
      `address replace ${routerAddress}/32 dev ${plan.uplink}`,
      `link set ${plan.uplink} up`,
      `route replace ${hostAddress} dev ${plan.uplink} src ${routerAddress}`,
      `route replace default via ${hostAddress} dev ${plan.uplink} src ${routerAddress}`,
    ]),
  );
}

/** Idempotent. */
export async function removeUplink({ hostLink }: RouterPlan): Promise<void> {
  await failpoint('remove uplink', async () => {
    try {
      await run('ip', ['link', 'delete', hostLink]);
    } catch (error) {
      if ((await linkNames()).includes(hostLink)) throw error;
    }
  });
}

/** Networks to which the host has routes of any kind, its default routes aside. */
async function routedNetworks(): Promise<string[]> {
  const shown = await showNetwork(['-4', 'route', 'show', 'table', 'all']);
  return (shown as { dst: string }[]).map(({ dst }) => dst).filter((dst) => dst !== 'default');
}

function covers(network: string, address: string): boolean {
  const [first = '', bits = '32'] = network.split('/');
  if (!/^[\d.]+$/u.test(first)) return false;
  const size = 2 ** (32 - Number(bits));
  return Math.floor(toNumber(first) / size) === Math.floor(toNumber(address) / size);
}
