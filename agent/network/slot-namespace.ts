import { readdir } from 'node:fs/promises';
import { errnoOf } from '../../shared/errors.ts';
import { run } from '../system/spawn.ts';
import { failpoint } from '../system/failpoint.ts';
import { denyAll } from './firewall.ts';
import { type SlotPlan, slotOfNamespace } from './slot.ts';
import { parseJson } from '../../shared/json.ts';

/** Where `ip netns` keeps the names. */
const NAMESPACES = '/run/netns';

// New namespaces inherit some of the host's settings, forwarding among them. By its path: an npm
// package, too, has a program named nft, which ends well without having loaded anything.
const CLOSE = [
  'set -e',
  'cd /proc/sys/net',
  'echo 0 > ipv4/ip_forward',
  'if [ -e ipv6 ]; then',
  '  echo 1 > ipv6/conf/all/disable_ipv6',
  '  echo 1 > ipv6/conf/default/disable_ipv6',
  'fi',
  'exec /usr/sbin/nft -f -',
].join('\n');

/** The slots of a host that have a namespace, however far they were made. */
export async function slotsWithNamespace(hostId: string): Promise<number[]> {
  return (await listNamespaces())
    .map((name) => slotOfNamespace(hostId, name))
    .filter((index) => index !== undefined)
    .sort((a, b) => a - b);
}

/** Makes a slot of which there is nothing yet. What fails half-way is left to {@link removeSlot}. */
export async function makeSlot(plan: SlotPlan): Promise<void> {
  await failpoint('make slot', async () => {
    await run('ip', ['netns', 'add', plan.namespace]);
    await closeSlot(plan); // Before there is anything that could get through.
    await run('ip', ['-n', plan.namespace, '-batch', '-'], { input: links(plan) });
  });
}

/** Removes what there is of a slot; idempotent. What is attached to its tap sees it vanish. */
export async function removeSlot(plan: SlotPlan): Promise<void> {
  await failpoint('remove slot', async () => {
    try {
      await run('ip', ['netns', 'delete', plan.namespace]);
    } catch (error) {
      if (await hasNamespace(plan)) throw error;
    }
  });
}

/**
 * Makes sure of a slot that a machine may be using: its rules are loaded again, the rest is looked at.
 * @returns whether it is as it should be
 */
export async function renewSlot(plan: SlotPlan): Promise<boolean> {
  if (!(await hasNamespace(plan))) return false;
  try {
    await closeSlot(plan);
    const shown = await run('ip', ['-n', plan.namespace, '-json', 'address', 'show', plan.tap]);
    return isAsPlanned(plan, parseJson(shown));
  } catch {
    return false;
  }
}

async function hasNamespace({ namespace }: SlotPlan): Promise<boolean> {
  return (await listNamespaces()).includes(namespace);
}

async function listNamespaces(): Promise<string[]> {
  try {
    return await readdir(NAMESPACES);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return []; // There never was one.
    throw error;
  }
}

async function closeSlot({ namespace }: SlotPlan): Promise<void> {
  const within = [`--net=${NAMESPACES}/${namespace}`, 'sh', '-c', CLOSE];
  await run('nsenter', within, { input: denyAll() });
}

/** The machine's starter attaches to the tap as root, so nobody else owns it. */
const links = (plan: SlotPlan): string =>
  [
    'link set lo up',
    `tuntap add dev ${plan.tap} mode tap`,
    `link set ${plan.tap} address ${plan.gatewayMac} mtu ${plan.mtuBytes}`,
    `address add ${plan.gatewayAddress}/${plan.prefixBits} dev ${plan.tap}`,
    `link set ${plan.tap} up`,
    '',
  ].join('\n');

interface ShownLink {
  readonly flags: readonly string[];
  readonly address: string;
  readonly mtu: number;
  readonly addr_info: readonly { local: string; prefixlen: number }[];
}

function isAsPlanned(plan: SlotPlan, shown: unknown): boolean {
  const [link] = shown as ShownLink[];
  return (
    link !== undefined &&
    link.flags.includes('UP') &&
    link.address === plan.gatewayMac &&
    link.mtu === plan.mtuBytes &&
    link.addr_info.length === 1 &&
    link.addr_info[0]?.local === plan.gatewayAddress &&
    link.addr_info[0].prefixlen === plan.prefixBits
  );
}
