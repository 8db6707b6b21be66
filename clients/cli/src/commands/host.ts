import type { Berth, HostInfo } from '@berth/sdk';
import type { Command } from '@commander-js/extra-typings';
import { group, leaf } from '../command.ts';
import { confirm } from '../confirm.ts';
import { opened } from '../context.ts';
import type { Shown } from '../output.ts';
import { formatAge, formatBytes } from '../text.ts';

/** How virtual machines run there, and why. */
const describeMachines = ({ accelerator, acceleratorReason }: HostInfo): string =>
  accelerator === undefined ? '-' : `${accelerator} (${acceleratorReason ?? 'unknown'})`;

const HOSTS: Shown<HostInfo> = {
  id: ({ id }) => id,
  columns: [
    { head: 'ID', of: ({ id }) => id },
    { head: 'STATE', of: ({ state }) => state },
    { head: 'VCPUS FREE', of: ({ vcpus, vcpusFree }) => `${vcpusFree} of ${vcpus}` },
    { head: 'MIB FREE', of: (host) => `${host.memoryMibFree} of ${host.memoryMib}` },
    { head: 'STORAGE FREE', of: ({ storageFreeBytes }) => formatBytes(storageFreeBytes) },
    { head: 'SANDBOXES', of: (host) => `${host.sandboxesActive} of ${host.sandboxes} active` },
    { head: 'DISKS', of: ({ disks }) => String(disks) },
    { head: 'COMMANDS', of: ({ execsRunning }) => String(execsRunning) },
    { head: 'HEARD', of: ({ lastHeartbeat }) => formatAge(lastHeartbeat) },
    { head: 'MACHINES', of: describeMachines },
    { head: 'VERSION', of: ({ version }) => version },
  ],
};

const lsCommand = () =>
  leaf('ls')
    .description('List the hosts of the region, those that are away included.')
    .action(async (options) => {
      const { output, berth } = await opened(options);
      output.list(await berth.hosts.list(), HOSTS);
    });

const getCommand = () =>
  leaf('get')
    .description('Show hosts.')
    .argument('<hosts...>', 'their ids')
    .action(async (ids, options) => {
      const { output, berth } = await opened(options);
      output.list(await Promise.all(ids.map((id) => berth.hosts.get(id))), HOSTS);
    });

interface Order {
  readonly name: string;
  readonly description: string;
  readonly give: (hosts: Berth['hosts'], id: string) => Promise<HostInfo>;
}

const ORDERS: readonly Order[] = [
  {
    name: 'cordon',
    description: 'Let hosts take no new sandboxes and disks; their sandboxes go on.',
    give: (hosts, id) => hosts.cordon(id),
  },
  {
    name: 'uncordon',
    description: 'Let cordoned or drained hosts work again. Paused sandboxes stay paused.',
    give: (hosts, id) => hosts.uncordon(id),
  },
  {
    name: 'drain',
    description:
      'Begin to pause the sandboxes of hosts and to take their disks away: it is over when berth host get says drained.',
    give: (hosts, id) => hosts.drain(id),
  },
  {
    name: 'fence',
    description:
      'Say that hosts which are away are off: others take their sandboxes over. Be sure of it.',
    give: (hosts, id) => hosts.fence(id),
  },
];

const orderCommand = ({ name, description, give }: Order) =>
  leaf(name)
    .description(description)
    .argument('<hosts...>', 'their ids')
    .action(async (ids, options) => {
      const { output, berth } = await opened(options);
      for (const id of ids) {
        const host = await give(berth.hosts, id);
        output.done(`${id} is ${host.state}`, host, id);
      }
    });

/** Some ids of a host's report, and how many more there are. */
function named(count: number, ids: readonly string[] = []): string {
  const more = count - ids.length;
  if (ids.length === 0) return String(count);
  return `${count} (${ids.join(', ')}${more > 0 ? `, and ${more} more` : ''})`;
}

/** The work that goes with a host, as it reported it last. */
function describeWork(host: HostInfo): string {
  const { id, state, lastHeartbeat, sandboxes, sandboxesActive, disksHeld } = host;
  const active = named(sandboxesActive, host.sandboxesActiveIds);
  const held = named(disksHeld, host.disksHeldIds);
  return `${id}, ${state}, heard ${formatAge(lastHeartbeat)}: sandboxes ${sandboxes}, active ${active}; disks held ${held}`;
}

/** @throws Failure unless the user agrees */
async function confirmRemoval(hosts: readonly HostInfo[]): Promise<void> {
  const works = hosts.map(describeWork).join('\n');
  const question = `Forget ${hosts.length === 1 ? 'this host' : 'these hosts'} and the sandboxes, free the disks? A machine that is not off destroys them.`;
  await confirm(`${works}\n${question}`, `add --yes to remove ${works}`, 'nothing was removed');
}

const rmCommand = () =>
  leaf('rm')
    .description(
      'Forget hosts that are off for good, with their sandboxes. Be sure that they are off: two hosts that use one disk destroy it.',
    )
    .argument('<hosts...>', 'their ids')
    .option('-y, --yes', 'do not ask')
    .option('--dry-run', 'only say what would be removed')
    .action(async (ids, { yes = false, dryRun = false, ...options }) => {
      const { output, berth } = await opened(options);
      const hosts = await Promise.all(ids.map((id) => berth.hosts.get(id)));
      if (!yes && !dryRun) await confirmRemoval(hosts);
      for (const host of hosts) {
        const { id } = host;
        if (!dryRun) await berth.hosts.delete(id);
        const done = dryRun ? `would remove ${describeWork(host)}` : `${id} is removed`;
        output.done(done, { id, deleted: !dryRun }, id);
      }
    });

/** `berth host …` */
export function hostCommand(): Command {
  const host = group('host', 'machines, for operators: cordon, drain, fence, remove')
    .addCommand(lsCommand())
    .addCommand(getCommand());
  for (const order of ORDERS) host.addCommand(orderCommand(order));
  return host.addCommand(rmCommand());
}
