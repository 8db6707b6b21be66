import type { Disk, DiskFile, DiskInfo } from '@berth/sdk';
import { leaf } from '../command.ts';
import { opened } from '../context.ts';
import { confirm } from '../confirm.ts';
import { findDisk } from '../find.ts';
import type { Output, Shown } from '../output.ts';
import { formatAge, formatBytes } from '../text.ts';
import { nothingAt, parsePlace } from '../transfer/place.ts';
import { filesOfDisk } from '../transfer/remote-files.ts';
import { each, given } from '../values.ts';

const DISKS: Shown<DiskInfo> = {
  id: ({ id }) => id,
  columns: [
    { head: 'NAME', of: ({ name }) => name, gives: true },
    { head: 'STATUS', of: ({ status }) => status },
    { head: 'SIZE', of: ({ dataSize }) => (dataSize === undefined ? '' : formatBytes(dataSize)) },
    { head: 'BUCKET', of: ({ mounts }) => mounts.map(({ name }) => name).join(', '), gives: true },
    { head: 'LAST USED', of: ({ lastAccessed }) => formatAge(lastAccessed) },
    { head: 'CREATED', of: ({ createdAt }) => formatAge(createdAt) },
    { head: 'ID', of: ({ id }) => id },
  ],
};

const FILES: Shown<DiskFile> = {
  id: ({ path }) => path,
  columns: [
    { head: 'SIZE', of: ({ size }) => (size === undefined ? '' : formatBytes(size)) },
    { head: 'CHANGED', of: ({ modified_at: time }) => formatAge(time) },
    { head: 'PATH', of: ({ path, type }) => (type === 'directory' ? `${path}/` : path) },
  ],
};

/** Tokens of users are shown once: of a disk that was just created. */
function showDisk(output: Output, { info }: Disk): void {
  const users = info.authorizedUsers.map((user) => {
    const token = 'token' in user ? `, token ${user.token}` : '';
    return `${user.nickname ?? user.type} (${user.identifier}${token})`;
  });
  output.record(
    info,
    [
      ['name', info.name],
      ['id', info.id],
      ['status', info.status],
      ['region', info.region],
      ['size', info.dataSize === undefined ? '' : formatBytes(info.dataSize)],
      ['bucket', info.mounts.map(({ name }) => name).join(', ')],
      ['users', users.join(', ')],
      ['addresses', info.allowedIps.join(', ')],
      ['created', `${info.createdAt} (${formatAge(info.createdAt)})`],
    ],
    info.id,
  );
}

export const createCommand = () =>
  leaf('create')
    .description(
      'Create a disk, or find the one of this name. The tokens of its users are printed only once.',
    )
    .argument('<name>', 'letters, digits, _ and -')
    .option('--allow <address>', 'only from this address or block; more than once', each)
    .action(async (name, { allow, ...options }) => {
      const { output, berth } = await opened(options);
      showDisk(output, await berth.disks.create({ name, ...given({ allowedIps: allow }) }));
    });

export const lsCommand = () =>
  leaf('ls')
    .description('List the disks; with disk:path, the files there.')
    .argument('[disk:path]', 'a directory of a disk')
    .action(async (place, options) => {
      const { output, berth } = await opened(options);
      if (place === undefined) {
        const disks = await berth.disks.list().toArray();
        return output.list(
          disks.map(({ info }) => info),
          DISKS,
        );
      }
      const asked = parsePlace(place);
      const [name, path] = asked.kind === 'remote' ? [asked.name, asked.path] : [place, ''];
      const disk = await findDisk(berth, name);
      const found = await disk.files.list(path).toArray();
      if (found.length === 0 && (await filesOfDisk(disk).typeOf(path)) === undefined) {
        throw nothingAt(place);
      }
      output.list(found, FILES);
    });

export const getCommand = () =>
  leaf('get')
    .description('Show a disk.')
    .argument('<disk>', 'its name or id')
    .action(async (name, options) => {
      const { output, berth } = await opened(options);
      const disk = await findDisk(berth, name);
      await disk.refresh();
      showDisk(output, disk);
    });

/** @throws Failure unless the user agrees */
async function confirmDeletion(names: readonly string[]): Promise<void> {
  const what = `${names.join(', ')} with everything on ${names.length === 1 ? 'it' : 'them'}`;
  await confirm(`Delete ${what}?`, `add --yes to delete ${what}`, 'nothing was deleted');
}

export const rmCommand = () =>
  leaf('rm')
    .description('Delete disks with everything on them.')
    .argument('<disks...>', 'their names or ids')
    .option('-y, --yes', 'do not ask')
    .option('--dry-run', 'only say what would be deleted')
    .action(async (names, { yes = false, dryRun = false, ...options }) => {
      const { output, berth } = await opened(options);
      const disks = await Promise.all(names.map((name) => findDisk(berth, name)));
      if (!yes && !dryRun) await confirmDeletion(disks.map(({ name }) => name));
      for (const disk of disks) {
        const { id, name } = disk;
        if (!dryRun) await disk.delete();
        const value = { id, name, deleted: !dryRun };
        output.done(dryRun ? `would delete ${name} (${id})` : `${name} is deleted`, value, id);
      }
    });
