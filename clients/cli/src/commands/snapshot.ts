import type { SnapshotInfo } from '@berth/sdk';
import type { Command } from '@commander-js/extra-typings';
import { group, leaf } from '../command.ts';
import { opened } from '../context.ts';
import { findSnapshot } from '../find.ts';
import type { Shown } from '../output.ts';
import { formatAge, formatBytes } from '../text.ts';

const SNAPSHOTS: Shown<SnapshotInfo> = {
  id: ({ snapshot_id: id }) => id,
  columns: [
    { head: 'NAME', of: ({ name }) => name, gives: true },
    { head: 'STATUS', of: ({ status }) => status },
    {
      head: 'SIZE',
      of: ({ size_bytes: bytes }) => (bytes === undefined ? '' : formatBytes(bytes)),
    },
    { head: 'SANDBOXES', of: ({ sandbox_count: count }) => String(count) },
    { head: 'CREATED', of: ({ created_at: time }) => formatAge(time) },
    { head: 'ID', of: ({ snapshot_id: id }) => id },
  ],
};

const lsCommand = () =>
  leaf('ls')
    .description('List the snapshots.')
    .action(async (options) => {
      const { output, berth } = await opened(options);
      const all = await berth.snapshots.list().toArray();
      output.list(
        all.map(({ info }) => info),
        SNAPSHOTS,
      );
    });

const rmCommand = () =>
  leaf('rm')
    .description('Delete snapshots.')
    .argument('<snapshots...>', 'their names or ids')
    .option('--dry-run', 'only say what would be deleted')
    .action(async (names, { dryRun = false, ...options }) => {
      const { output, berth } = await opened(options);
      const snapshots = await Promise.all(names.map((name) => findSnapshot(berth, name)));
      for (const snapshot of snapshots) {
        if (!dryRun) await snapshot.delete();
        const { id, name } = snapshot;
        const value = { snapshot_id: id, name, deleted: !dryRun };
        output.done(dryRun ? `would delete ${name} (${id})` : `${name} is deleted`, value, id);
      }
    });

/** `berth snapshot …` */
export const snapshotGroup = (): Command =>
  group('snapshot', 'what sandboxes were, kept to create others from')
    .addCommand(lsCommand())
    .addCommand(rmCommand());
