import test from 'ava';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { forgetUse, noteUse } from '../../agent/images/note-use.ts';
import { temporaryDirectory } from '../helpers/temporary.ts';
import { DAY_MS } from '../../shared/units.ts';

const execute = promisify(execFile);
const script = new URL('../../scripts/evict-cache', import.meta.url).pathname;
const LONG_AGO = new Date(Date.now() - 31 * DAY_MS);

/** An entry of the cache that was last used long ago. */
async function oldEntry(cache: string, name: string): Promise<string> {
  const entry = join(cache, name);
  await mkdir(join(entry, 'hosts'), { recursive: true });
  for (const file of ['root.ext4', 'used']) await writeFile(join(entry, file), '');
  await utimes(join(entry, 'used'), LONG_AGO, LONG_AGO);
  return entry;
}

/** Notes that a host with this data directory began to use an entry, long ago. */
async function noteOld(entry: string, hostId: string, dataDir: string): Promise<void> {
  await noteUse(entry, { hostId, dataDir });
  for (const file of ['used', `hosts/${hostId}`]) {
    await utimes(join(entry, file), LONG_AGO, LONG_AGO);
  }
}

test('what nobody uses goes from the build cache, and nothing that a sandbox stands on', async (t) => {
  await using directory = await temporaryDirectory();
  const cache = join(directory.path, 'cache');
  const entry = (name: string): Promise<string> => oldEntry(cache, name);
  const [unused, guest, current] = [
    await entry('images/unused'),
    await entry('guests/unused'),
    await entry('images/current'),
  ];
  const [ofMachine, ofContainer, emptied] = [
    await entry('images/of-machine'),
    await entry('images/of-container'),
    await entry('images/emptied'),
  ];
  const data = join(directory.path, 'data');
  for (const [base, path, record] of [
    [ofMachine, 'one/base.json', { path: `${ofMachine}/root.ext4` }],
    [ofContainer, 'two/disks/disk.json', { imageDir: `${ofContainer}/rootfs` }],
  ] as const) {
    const file = join(data, 'sandboxes', path);
    await mkdir(join(file, '..'), { recursive: true });
    await writeFile(file, JSON.stringify(record));
    await noteOld(base, 'host-a', data);
  }
  await noteOld(emptied, 'host-a', data);
  const [away, gone] = [await entry('images/away'), await entry('images/gone')];
  await noteOld(away, 'host-b', join(directory.path, 'not-mounted'));
  await utimes(join(away, 'hosts/host-b'), new Date(), new Date());
  await noteOld(gone, 'host-b', join(directory.path, 'not-mounted'));
  const used = await entry('images/used');
  for (const path of [used, join(directory.path, 'no-entry')]) {
    await noteUse(path, { hostId: 'host-a', dataDir: data });
  }
  await mkdir(join(cache, 'images/of-an-earlier-version'));

  const env = { ...process.env, BERTH_CACHE_DIR: cache };
  await execute(script, [current], { env });
  for (const path of [unused, guest, emptied, gone]) t.false(existsSync(path), path);
  for (const path of [current, ofMachine, ofContainer, away, used]) {
    t.true(existsSync(join(path, 'root.ext4')), path);
  }
  t.true((await stat(join(current, 'used'))).mtimeMs > LONG_AGO.getTime());
  t.is(await readFile(join(used, 'hosts/host-a'), 'utf8'), `${data}\n`);
  t.true(existsSync(join(cache, 'images/of-an-earlier-version/used')), 'its time begins');

  await forgetUse(used, { hostId: 'host-a', dataDir: data });
  t.true(existsSync(join(used, 'hosts/host-a')), 'the host has sandboxes');
  await rm(join(data, 'sandboxes'), { recursive: true });
  await forgetUse(used, { hostId: 'host-a', dataDir: data });
  t.false(existsSync(join(used, 'hosts/host-a')));
});

test('set-up scripts asked for help do nothing else', async (t) => {
  await using directory = await temporaryDirectory();
  const unused = await oldEntry(directory.path, 'images/unused');
  const env = { ...process.env, BERTH_CACHE_DIR: directory.path };
  for (const name of ['evict-cache', 'install-packages', 'check-c']) {
    const path = join(script, '..', name);
    for (const flag of ['-h', '--help']) {
      const { stdout, stderr } = await execute(path, [flag], { env });
      t.true(stdout.startsWith(`usage: scripts/${name} [`), stdout);
      t.is(stderr, '');
    }
    await t.throwsAsync(execute(path, ['--halp'], { env }), {
      message: /unknown argument --halp/u,
    });
  }
  t.true(existsSync(unused));
});
