/* `cp` and `sync` between a directory here and a disk whose server is played. */
import { mkdir, rm, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import test from 'ava';
import { Output } from '../../../clients/cli/src/output.ts';
import type { Transfer } from '../../../clients/cli/src/transfer/place.ts';
import { filesOfDisk, type RemoteFiles } from '../../../clients/cli/src/transfer/remote-files.ts';
import { sync, type SyncTally } from '../../../clients/cli/src/transfer/sync.ts';
import { Berth } from '../../../clients/sdk/src/index.ts';
import { ServedObjects } from '../../helpers/served-objects.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

const output = new Output({ quiet: true });

async function makeFiles(
  directory: string,
  files: Readonly<Record<string, string>>,
): Promise<void> {
  for (const [path, content] of Object.entries(files)) {
    await mkdir(dirname(join(directory, path)), { recursive: true });
    await writeFile(join(directory, path), content);
  }
}

async function remoteFiles({ url, disk }: ServedObjects): Promise<RemoteFiles> {
  const berth = new Berth({ baseUrl: url, apiKey: 'key-none' });
  return filesOfDisk(await berth.disks.get(disk.id));
}

const up = (path: string): Transfer => ({
  direction: 'up',
  from: { kind: 'local', path },
  to: { kind: 'remote', name: 'work', path: 'copy' },
});

/** Syncs with `--delete`. */
const mirror = async (transfer: Transfer, served: ServedObjects): Promise<SyncTally> => {
  const remote = await remoteFiles(served);
  return sync(transfer, { remote, output, jobs: 4, deletes: true, isDry: false });
};

test('sync --delete keeps on the disk what a link here has taken the place of', async (t) => {
  await using source = await temporaryDirectory();
  await using elsewhere = await temporaryDirectory();
  await using served = await ServedObjects.start({ 'copy/latest': 'data', 'copy/late': 'gone' });
  await makeFiles(source.path, { 'logs/old/1': 'one', 'logs-2/1': 'two', 'v2.csv': 'data' });
  await symlink('v2.csv', join(source.path, 'latest'));
  t.like(await mirror(up(source.path), served), { files: 3, deleted: 1 });
  await rm(join(source.path, 'logs'), { recursive: true });
  await rm(join(source.path, 'logs-2'), { recursive: true });
  await symlink(elsewhere.path, join(source.path, 'logs'));
  t.like(await mirror(up(source.path), served), { unchanged: 1, deleted: 1, failed: [] });
  t.deepEqual(served.keys, ['copy/latest', 'copy/logs/old/1', 'copy/v2.csv']);
});
