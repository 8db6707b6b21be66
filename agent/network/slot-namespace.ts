import { readdir } from 'node:fs/promises';
import { errnoOf } from '../../shared/errors.ts';
import { run } from '../system/spawn.ts';
import { failpoint } from '../system/failpoint.ts';
import { denyAll } from './firewall.ts';
import { type SlotPlan, slotOfNamespace } from './slot.ts';
import { parseJson } from '../../shared/json.ts';

/** Where `ip netns` keeps its named namespaces. */
const NAMESPACES = '/run/netns';

// A new namespace inherits some of the host's settings, such as forwarding. nft is named by its
// path because an npm package also has a program of that name, which exits with 0 without loading
// anything.
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

/** Numbers of the host's slots that have a namespace, half-made ones included. */
export async function slotsWithNamespace(hostId: string): Promise<number[]> {
  return (await listNamespaces())
    .map((name) => slotOfNamespace(hostId, name))
    .filter((index) => index !== undefined)
    .sort((a, b) => a - b);
}

/** Makes a slot whose namespace does not exist yet. After a failure, call {@link removeSlot}. */
export async function makeSlot(plan: SlotPlan): Promise<void> {
  await failpoint('make slot', async () => {
    await run('ip', ['netns', 'add', plan.namespace]);
    await closeSlot(plan); // Before the tap exists, so that nothing ever gets through.
    await run('ip', ['-n', plan.namespace, '-batch', '-'], { input: links(plan) });
  });
}

/** Removes a slot, however far it was made; idempotent. A machine on its tap loses its network. */
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
 * Checks a slot of a former agent, which a machine may be using, and loads its rules again.
 * @returns false when the slot is not as planned and has to be made again
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
    if (errnoOf(error) === 'ENOENT') return []; // No namespace was ever made here.
    throw error;
  }
}

async function closeSlot({ namespace }: SlotPlan): Promise<void> {
  const within = [`--net=${NAMESPACES}/${namespace}`, 'sh', '-c', CLOSE];
  await run('nsenter', within, { input: denyAll() });
}

/** The tap has no owner: the shim attaches to it as root. */
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
