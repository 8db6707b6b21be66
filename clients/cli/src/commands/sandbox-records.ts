import type { SandboxInfo } from '@berth/sdk';
import { leaf } from '../command.ts';
import { opened } from '../context.ts';
import { findDisk, findSandbox } from '../find.ts';
import { type Output, paint, type Shown } from '../output.ts';
import { counted, formatAge } from '../text.ts';

const STATUS_COLOURS = {
  running: 'green',
  paused: 'yellow',
  failed: 'red',
} as const;

const paintStatus = (text: string): string => {
  const colour = Object.entries(STATUS_COLOURS).find(([status]) => text.trim() === status)?.[1];
  return colour === undefined ? text : paint(colour, text);
};

const imageOf = ({ base_image: base, image, image_digest: digest }: SandboxInfo): string =>
  base || (image === undefined ? (digest ?? '') : `${image.name}:${image.version}`);

const SANDBOXES: Shown<SandboxInfo> = {
  id: ({ sandbox_id: id }) => id,
  columns: [
    { head: 'NAME', of: ({ name }) => name, gives: true },
    { head: 'STATUS', of: ({ status }) => status, paint: paintStatus },
    { head: 'CPUS', of: ({ vcpu_count: count }) => String(count) },
    { head: 'MEMORY', of: ({ mem_size_mib: mib }) => `${mib} MiB` },
    { head: 'IMAGE', of: imageOf, gives: true },
    { head: 'CREATED', of: ({ created_at: time }) => formatAge(time) },
    { head: 'ID', of: ({ sandbox_id: id }) => id },
  ],
};

const hookOf = ({ copy_hook_result: result }: SandboxInfo): string =>
  result === undefined ? '' : [result.status, result.message].filter(Boolean).join(': ');

/** Prints a sandbox as `get` and `create` do. */
export function showSandbox(output: Output, info: SandboxInfo): void {
  const mounts = info.mounts.map(({ disk_id: disk, path }) => `${disk} at ${path}`);
  output.record(
    info,
    [
      ['name', info.name],
      ['id', info.sandbox_id],
      ['status', info.status],
      ['why', info.exit_message ?? ''],
      ['image', imageOf(info)],
      ['size', `${counted(info.vcpu_count, 'CPU')}, ${info.mem_size_mib} MiB`],
      ['disks', mounts.join(', ')],
      ['ports', info.endpoints.map(({ hostname }) => hostname).join(', ')],
      ['copy hook', info.copy_hook ?? ''],
      ['its result', hookOf(info)],
      ['created', `${info.created_at} (${formatAge(info.created_at)})`],
      ['pauses at', info.expires_at ?? ''],
    ],
    info.sandbox_id,
  );
}

export const lsCommand = () =>
  leaf('ls')
    .description('List the sandboxes.')
    .option('--disk <disk>', 'only those that mount this disk')
    .option('--status <status>', 'only those in this state')
    .action(async ({ disk, status, ...options }) => {
      const { berth, output } = await opened(options);
      const filter = disk === undefined ? {} : { filesystem: (await findDisk(berth, disk)).id };
      const all = (await berth.sandboxes.list(filter)).map(({ info }) => info);
      const wanted = all.filter((info) => status === undefined || info.status === status);
      output.list(wanted, SANDBOXES);
    });

export const getCommand = () =>
  leaf('get')
    .description('Show a sandbox.')
    .argument('<sandbox>', 'its name or id')
    .action(async (name, options) => {
      const { berth, output } = await opened(options);
      showSandbox(output, (await findSandbox(berth, name)).info);
    });
