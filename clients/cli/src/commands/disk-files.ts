import { leaf } from '../command.ts';
import { opened } from '../context.ts';
import { findDisk } from '../find.ts';
import { counted, formatBytes } from '../text.ts';
import { writeTo } from '../process-io.ts';
import { requireNone } from '../transfer/attempts.ts';
import { orNothingAt, parseRemote, parseTransfer } from '../transfer/place.ts';
import { JOBS } from '../transfer/pool.ts';
import { filesOfDisk } from '../transfer/remote-files.ts';
import type { SyncTally } from '../transfer/sync.ts';
import { count, duration, given } from '../values.ts';

/** Loaded by those who need them: every other command of the group begins faster without them. */
const loadCopy = () => import('../transfer/copy.ts');
const loadSync = () => import('../transfer/sync.ts');
const loadEdit = () => import('../transfer/edit.ts');

const PLACE = 'a local path, disk:path, or - for stdin or stdout';

/** The name of the disk in a transfer. */
const diskOf = (transfer: ReturnType<typeof parseTransfer>): string =>
  transfer.direction === 'up' ? transfer.to.name : transfer.from.name;

export const cpCommand = () =>
  leaf('cp')
    .description('Copy files or directories between here and a disk.')
    .argument('<source>', PLACE)
    .argument('<target>', PLACE)
    .option('-j, --jobs <n>', 'how many files at once', count, JOBS)
    .option('-r, --recursive', 'needed by other programs; directories are copied without it')
    .action(async (source, target, { jobs, ...options }) => {
      const transfer = parseTransfer(source, target, 'disk');
      const { output, berth } = await opened(options);
      const remote = filesOfDisk(await findDisk(berth, diskOf(transfer)));
      const { copy } = await loadCopy();
      const tally = await copy(transfer, { remote, output, jobs });
      if (output.isJson && target !== '-') output.json(tally);
      else if (target !== '-') {
        output.note(`copied ${counted(tally.files, 'file')}, ${formatBytes(tally.bytes)}`);
      }
      requireNone(tally.failed);
    });

function summarize(
  { files, bytes, unchanged, deleted, failed }: SyncTally,
  isDry: boolean,
): string {
  const copied = `${isDry ? 'would copy' : 'copied'} ${counted(files, 'file')}, ${formatBytes(bytes)}`;
  const removed = deleted === 0 ? '' : `; ${isDry ? 'would delete' : 'deleted'} ${deleted}`;
  const broken = failed.length === 0 ? '' : `; ${failed.length} failed`;
  return `${copied}; ${unchanged} were the same${removed}${broken}`;
}

export const syncCommand = () =>
  leaf('sync')
    .summary('make a directory of a disk like a local one, or the other way round')
    .description(
      `Make a directory of a disk like a local one, or the other way round. Files that are the same are not
transferred again, so an interrupted sync is continued by running it again.`,
    )
    .argument('<source>', 'a local directory, or disk:path')
    .argument('<target>', 'a local directory, or disk:path')
    .option('--delete', 'delete from the target what the source does not have')
    .option('--dry-run', 'only say what would be copied and deleted')
    .option('-j, --jobs <n>', 'how many files at once', count, JOBS)
    .action(
      async (source, target, { delete: deletes = false, dryRun = false, jobs, ...options }) => {
        const transfer = parseTransfer(source, target, 'disk');
        const { output, berth } = await opened(options);
        const remote = filesOfDisk(await findDisk(berth, diskOf(transfer)));
        const { sync } = await loadSync();
        const tally = await sync(transfer, { remote, output, jobs, deletes, isDry: dryRun });
        output.done(summarize(tally, dryRun), tally, String(tally.files));
        requireNone(tally.failed);
      },
    );

export const catCommand = () =>
  leaf('cat')
    .description('Print files of disks.')
    .argument('<disk:path...>', 'the files')
    .action(async (places, options) => {
      const { berth } = await opened(options);
      for (const place of places.map(parseRemote)) {
        const disk = await findDisk(berth, place.name);
        const content = await orNothingAt(place, disk.files.read(place.path));
        for await (const piece of content) await writeTo(process.stdout, piece);
      }
    });

export const editCommand = () =>
  leaf('edit')
    .description('Edit a file of a disk with $VISUAL or $EDITOR. A file that is not there is made.')
    .argument('<disk:path>', 'the file')
    .action(async (place, options) => {
      const { name, path } = parseRemote(place);
      const { output, berth } = await opened(options);
      const disk = await findDisk(berth, name);
      const { edit } = await loadEdit();
      const isChanged = await edit(disk, path);
      const value = { disk: disk.id, path, changed: isChanged };
      output.done(`${name}:${path} ${isChanged ? 'is saved' : 'was not changed'}`, value, path);
    });

export const shareCommand = () =>
  leaf('share')
    .description('Print a link with which anybody can download a file for a limited time.')
    .argument('<disk:path>', 'the file')
    .option('--expires <time>', 'such as 90s, 1h or 7d; default 1d', duration)
    .action(async (place, { expires, ...options }) => {
      const remote = parseRemote(place);
      const { output, berth } = await opened(options);
      const disk = await findDisk(berth, remote.name);
      const fields = { key: remote.path, ...given({ expiresIn: expires }) };
      const link = await orNothingAt(remote, disk.share(fields));
      output.done(link.url, link, link.url);
    });
