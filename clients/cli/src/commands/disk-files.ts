import { leaf } from '../command.ts';
import { opened } from '../context.ts';
import { findDisk } from '../find.ts';
import { parseRemote } from '../transfer/place.ts';
import { duration, given } from '../values.ts';

export const shareCommand = () =>
  leaf('share')
    .description('Print a link with which anybody can download a file for a limited time.')
    .argument('<disk:path>', 'the file')
    .option('--expires <time>', 'such as 90s, 1h or 7d; default 1d', duration)
    .action(async (place, { expires, ...options }) => {
      const { name, path } = parseRemote(place);
      const { output, berth } = await opened(options);
      const disk = await findDisk(berth, name);
      const link = await disk.share({ key: path, ...given({ expiresIn: expires }) });
      output.done(link.url, link, link.url);
    });
