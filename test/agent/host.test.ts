/* The identity of a host, in its data directory. */
import { readdir, readFile, writeFile } from 'node:fs/promises';
import test from 'ava';
import { claimHost } from '../../agent/host.ts';
import { paths } from '../../agent/system/paths.ts';
import { hostIdPattern } from '../../shared/ids.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';

test('a host gets an id once and keeps it', async (t) => {
  await using directory = await temporaryDirectory();
  const { path } = directory;
  const first = await claimHost(path);
  t.regex(first.hostId, new RegExp(hostIdPattern, 'u'));
  await t.throwsAsync(claimHost(path), { message: /another agent runs/u });
  await first.release();
  const again = await claimHost(path);
  t.is(again.hostId, first.hostId);
  await again.release();
  t.is(await readFile(paths.hostId(path), 'utf8'), `${first.hostId}\n`);
  t.deepEqual(
    (await readdir(path)).filter((name) => name.includes('host-id')),
    ['host-id'],
  );
});

for (const [what, text] of [
  ['empty', ''],
  ['cut off', 'host-0123\n'],
  ['longer than an id', 'host-0123456789ab/..\n'],
] as const) {
  test(`a file that is ${what} is not taken for the id of a host`, async (t) => {
    await using directory = await temporaryDirectory();
    const { path } = directory;
    await writeFile(paths.hostId(path), text);
    await t.throwsAsync(claimHost(path), { message: /host-id does not hold the id of a host/u });
    t.is(await readFile(paths.hostId(path), 'utf8'), text);
    await writeFile(paths.hostId(path), 'host-0123456789ab\n');
    const { hostId, release } = await claimHost(path);
    t.is(hostId, 'host-0123456789ab');
    await release();
  });
}
