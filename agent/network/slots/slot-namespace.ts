import { readdir } from 'node:fs/promises';
import { ignoring } from '../../../shared/errors.ts';
import { failpoint } from '../../system/failpoint.ts';
import { run } from '../../system/spawn.ts';
import { configureLinks, NAMESPACES, NFT, runWithin } from './nft.ts';
import { planRouter } from './router-plan.ts';
import { linkNames, showNetwork } from './show-network.ts';
import { denyAll, slotRules } from './slot-rules.ts';
import { type SlotPlan, slotOfNamespace } from './slot.ts';

/** Creates and removes slots on the host. Every call is idempotent. */
export interface SlotNamespaces {
  /** Numbers of the host's slots that exist, half-made ones included. */
  list(hostId: string): Promise<number[]>;
  /** @param policy the rules of its first policy; without them nothing gets out of it */
  make(plan: SlotPlan, policy?: string): Promise<void>;
  /**
   * Checks a former agent's slot, which a machine may be using; its policy and its connections
   * stay.
   * @returns false when it has to be made again
   */
  renew(plan: SlotPlan): Promise<boolean>;
  remove(plan: SlotPlan): Promise<void>;
}

export interface SlotKind {
  /** The link to a slot's guest: a tap for a virtual machine, a veth pair for a container. */
  readonly guestLink: 'tap' | 'veth';
  /** The host whose router slots are linked to; without one nothing gets into or out of them. */
  readonly routerOf: string | undefined;
}

/** A container's end of its link waits in the slot under this name. */
export const CONTAINER_LINK = 'eth0';

// A new namespace inherits some of the host's settings. Rules come by stdin, and then links, if
// any, as lines for `ip -batch`: nothing ever gets through before there are rules.
const setUp = (isRouted: boolean): string =>
  [
    'set -e',
    'cd /proc/sys/net',
    `echo ${isRouted ? 1 : 0} > ipv4/ip_forward`,
    'if [ -e ipv6 ]; then',
    '  echo 1 > ipv6/conf/all/disable_ipv6',
    '  echo 1 > ipv6/conf/default/disable_ipv6',
    'fi',
    `${NFT} -f -`,
    'if [ -n "$1" ]; then printf "%s\\n" "$1" | ip -batch -; fi',
  ].join('\n');

/** Numbers of the host's slots that have a namespace, half-made ones included. */
export async function slotsWithNamespace(hostId: string): Promise<number[]> {
  return (await listNamespaces())
    .map((name) => slotOfNamespace(hostId, name))
    .filter((index) => index !== undefined)
    .sort((a, b) => a - b);
}

/** How slots of this kind are made, as network namespaces of the kernel. */
export const slotNamespaces = (kind: SlotKind): SlotNamespaces => ({
  list: slotsWithNamespace,
  make: (plan, policy) => makeSlot(plan, kind, policy),
  renew: (plan) => renewSlot(plan, kind),
  remove: (plan) => removeSlot(plan, kind),
});

/** Makes a slot whose namespace does not exist yet. After a failure, call {@link removeSlot}. */
async function makeSlot(plan: SlotPlan, kind: SlotKind, policy = ''): Promise<void> {
  const { namespace } = plan;
  await failpoint('make slot', async () => {
    await run('ip', ['netns', 'add', namespace]);
    // In one go, because each program takes some milliseconds to start.
    const links = [...guestLink(plan, kind), ...uplink(plan, kind)];
    await setRules(plan, kind, { rules: `${rulesAround(plan, kind)}${policy}`, links });
    await linkAtRouter(plan, kind);
  });
}

/** Removes a slot, however far it was made; idempotent. A machine on its tap loses its network. */
export async function removeSlot(plan: SlotPlan, { routerOf }: SlotKind): Promise<void> {
  await failpoint('remove slot', async () => {
    // The kernel removes a namespace some time later; a new slot of this number may be made before.
    if (routerOf !== undefined) await unlinkFromRouter(plan, routerOf);
    try {
      await run('ip', ['netns', 'delete', plan.namespace]);
    } catch (error) {
      if (await hasNamespace(plan.namespace)) throw error;
    }
  });
}

async function renewSlot(plan: SlotPlan, kind: SlotKind): Promise<boolean> {
  if (!(await hasNamespace(plan.namespace))) return false;
  try {
    await setRules(plan, kind, { rules: rulesAround(plan, kind), links: [] });
    const shown = await showAddresses(plan.namespace, plan.tap);
    if (!isAsPlanned(plan, shown)) return false;
    if (kind.routerOf !== undefined && !(await isLinked(plan, kind.routerOf))) {
      await deleteLink(plan.namespace, plan.uplink);
      await configureLinks(plan.namespace, uplink(plan, kind));
      await linkAtRouter(plan, kind);
    }
    return true;
  } catch {
    return false;
  }
}

/** Whether `ip netns` knows a namespace of this name. */
export async function hasNamespace(namespace: string): Promise<boolean> {
  return (await listNamespaces()).includes(namespace);
}

/** Without the directory, no namespace was ever made here. */
const listNamespaces = async (): Promise<string[]> =>
  (await readdir(NAMESPACES).catch(ignoring('ENOENT'))) ?? [];

/** The rules around the policy. */
const rulesAround = (plan: SlotPlan, { routerOf }: SlotKind): string =>
  routerOf === undefined ? denyAll() : slotRules(plan);

async function setRules(
  { namespace }: SlotPlan,
  { routerOf }: SlotKind,
  { rules, links }: { readonly rules: string; readonly links: readonly string[] },
): Promise<void> {
  const script = setUp(routerOf !== undefined);
  await runWithin(namespace, ['sh', '-c', script, 'sh', links.join('\n')], rules);
}

/** A tap has no owner: the shim attaches to it as root. */
function guestLink(plan: SlotPlan, kind: SlotKind): string[] {
  const { tap, gatewayMac, guestMac, mtuBytes } = plan;
  const made =
    kind.guestLink === 'tap'
      ? [`tuntap add dev ${tap} mode tap`, `link set ${tap} address ${gatewayMac} mtu ${mtuBytes}`]
      : [
          `link add ${tap} address ${gatewayMac} mtu ${mtuBytes} type veth` +
            ` peer name ${CONTAINER_LINK} address ${guestMac} mtu ${mtuBytes}`,
        ];
  return [
    'link set lo up',
    ...made,
    `address add ${plan.gatewayAddress}/${plan.prefixBits} dev ${tap}`,
    `link set ${tap} up`,
    // The address is fixed, whatever the guest claims.
    `neighbour replace ${plan.guestAddress} lladdr ${guestMac} dev ${tap} nud permanent`,
  ];
}

/** The link to the router; the router's end is configured by {@link linkAtRouter}. */
function uplink(plan: SlotPlan, { routerOf }: SlotKind): string[] {
  if (routerOf === undefined) return [];
  const { namespace: router } = planRouter(routerOf);
  const { uplink: name, routerLink, address, proxiedAddress, routerAddress } = plan;
  return [
    `link add ${name} type veth peer name ${routerLink} netns ${router}`,
    `address add ${address}/32 dev ${name}`,
    `address add ${proxiedAddress}/32 dev ${name}`,
    `link set ${name} up`,
    `route add ${routerAddress} dev ${name} src ${address}`,
    `route add default via ${routerAddress} dev ${name} src ${address}`,
  ];
}

async function linkAtRouter(plan: SlotPlan, { routerOf }: SlotKind): Promise<void> {
  if (routerOf === undefined) return;
  const { routerLink, address, proxiedAddress, routerAddress } = plan;
  await configureLinks(planRouter(routerOf).namespace, [
    `link set ${routerLink} up`,
    `route add ${address} dev ${routerLink} src ${routerAddress}`,
    `route add ${proxiedAddress} dev ${routerLink} src ${routerAddress}`,
  ]);
}

async function unlinkFromRouter({ routerLink }: SlotPlan, routerOf: string): Promise<void> {
  await deleteLink(planRouter(routerOf).namespace, routerLink);
}

/** Idempotent. The other end of a pair goes with it. */
async function deleteLink(namespace: string, name: string): Promise<void> {
  try {
    await run('ip', ['-n', namespace, 'link', 'delete', name]);
  } catch (error) {
    if ((await hasNamespace(namespace)) && (await linkNames(namespace)).includes(name)) throw error;
  }
}

interface ShownLink {
  readonly flags: readonly string[];
  readonly operstate: string;
  readonly address: string;
  readonly mtu: number;
  readonly addr_info: readonly { local: string; prefixlen: number }[];
}

/** An interface and its addresses, as `ip` shows it. @throws Error when there is none */
export async function showAddresses(
  namespace: string | undefined,
  name: string,
): Promise<ShownLink | undefined> {
  const within = namespace === undefined ? [] : ['-n', namespace];
  const shown = await showNetwork([...within, 'address', 'show', name]);
  return (shown as ShownLink[])[0];
}

function isAsPlanned(plan: SlotPlan, link: ShownLink | undefined): boolean {
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

/** Whether the slot's link to the router is whole, on both sides. */
async function isLinked(plan: SlotPlan, routerOf: string): Promise<boolean> {
  const link = await showAddresses(plan.namespace, plan.uplink).catch(() => undefined);
  const addresses = link?.addr_info.map(({ local }) => local) ?? [];
  return (
    link?.operstate === 'UP' &&
    addresses.includes(plan.address) &&
    addresses.includes(plan.proxiedAddress) &&
    (await linkNames(planRouter(routerOf).namespace)).includes(plan.routerLink)
  );
}
