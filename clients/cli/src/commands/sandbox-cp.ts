import { leaf } from '../command.ts';
import { opened } from '../context.ts';
import { findSandbox } from '../find.ts';
import { counted, formatBytes } from '../text.ts';
import { requireNone } from '../transfer/attempts.ts';
import { parseTransfer } from '../transfer/place.ts';
import { filesOfSandbox } from '../transfer/remote-files.ts';
import { count } from '../values.ts';

const PLACE = 'a local path, sandbox:path, or - for stdin or stdout';
/** A sandbox has 16 operations at a time for all its clients. */
const JOBS = 8;

export const cpCommand = () =>
  leaf('cp')
    .description('Copy files or directories between here and a running sandbox.')
    .argument('<source>', PLACE)
    .argument('<target>', PLACE)
    .option('-j, --jobs <n>', 'how many files at once', count, JOBS)
    .option('-r, --recursive', 'needed by other programs; directories are copied without it')
    .action(async (source, target, { jobs, ...options }) => {
      const transfer = parseTransfer(source, target, 'sandbox');
      const { output, berth } = await opened(options);
      const { name } = transfer.direction === 'up' ? transfer.to : transfer.from;
      const remote = filesOfSandbox(await findSandbox(berth, name));
      const { copy } = await import('../transfer/copy.ts'); // Other commands begin faster without it.
      const tally = await copy(transfer, { remote, output, jobs });
      if (target === '-') return;
      if (output.isJson) output.json(tally);
      else output.note(`copied ${counted(tally.files, 'file')}, ${formatBytes(tally.bytes)}`);
      requireNone(tally.failed);
    });
