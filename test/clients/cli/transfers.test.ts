/*
 * `cp`, `sync` and `edit` of files that cannot be read or written, on a disk behind a faulty proxy.
 */
import { chmod, mkdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Transfer } from '../../../clients/cli/src/transfer/place.ts';
import { copy } from '../../../clients/cli/src/transfer/copy.ts';
import { Output } from '../../../clients/cli/src/output.ts';
import { filesOfDisk, type RemoteFiles } from '../../../clients/cli/src/transfer/remote-files.ts';
import { sync, type SyncTally } from '../../../clients/cli/src/transfer/sync.ts';
import { Cli } from '../../helpers/cli.ts';
import { FaultyDisk } from '../../helpers/faulty-disk.ts';
import { stackTest } from '../../helpers/stack-test.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { Terminal } from '../../helpers/terminal.ts';
import { MiB } from '../../../shared/units.ts';

/** Serial, because a test may give up the process's rights for a while. */
const { serial: test } = stackTest();

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

const remoteFiles = async (disk: FaultyDisk): Promise<RemoteFiles> =>
  filesOfDisk(await disk.open());

const up = (path: string): Transfer => ({
  direction: 'up',
  from: { kind: 'local', path },
  to: { kind: 'remote', name: 'work', path: 'copy' },
});

/** Syncs with `--delete`. */
const mirror = async (transfer: Transfer, disk: FaultyDisk): Promise<SyncTally> => {
  const remote = await remoteFiles(disk);
  return sync(transfer, { remote, output, jobs: 4, deletes: true, isDry: false });
};

test('sync --delete keeps on the disk what a link here has taken the place of', async (t) => {
  await using source = await temporaryDirectory();
  await using elsewhere = await temporaryDirectory();
  await using disk = await FaultyDisk.start(t.context.api, {
    'copy/latest': 'data',
    'copy/late': 'gone',
  });
  await makeFiles(source.path, { 'logs/old/1': 'one', 'logs-2/1': 'two', 'v2.csv': 'data' });
  await symlink('v2.csv', join(source.path, 'latest'));
  t.like(await mirror(up(source.path), disk), { files: 3, deleted: 1 });
  await rm(join(source.path, 'logs'), { recursive: true });
  await rm(join(source.path, 'logs-2'), { recursive: true });
  await symlink(elsewhere.path, join(source.path, 'logs'));
  t.like(await mirror(up(source.path), disk), { unchanged: 1, deleted: 1, failed: [] });
  t.deepEqual(await disk.keys(), ['copy/latest', 'copy/logs/old/1', 'copy/v2.csv']);
});

/** Does the work without the rights of root, which may read everything. */
async function asNobody<T>(work: () => Promise<T>): Promise<T> {
  process.seteuid?.('nobody');
  try {
    return await work();
  } finally {
    process.seteuid?.(0);
  }
}

const NOT_UTF8 = Buffer.from([0x6e, 0xff]);
const inDirectory = (directory: string, name: Uint8Array): Buffer =>
  Buffer.concat([Buffer.from(`${directory}/`), name]);

test('entries that cannot be read or listed keep no others, and nothing of theirs is deleted', async (t) => {
  await using source = await temporaryDirectory();
  await using disk = await FaultyDisk.start(t.context.api, {
    'copy/closed/kept': 'kept',
    'copy/gone': 'gone',
    'copy/secret': 'SECRET',
  });
  await makeFiles(source.path, { 'closed/x': 'x', 'open/y': 'y', secret: 'secret' });
  await mkdir(inDirectory(source.path, NOT_UTF8));
  await chmod(source.path, 0o755);
  await chmod(join(source.path, 'closed'), 0);
  await chmod(join(source.path, 'secret'), 0);
  const { files, deleted, failed } = await asNobody(() => mirror(up(source.path), disk));
  t.like({ files, deleted }, { files: 1, deleted: 1 });
  t.deepEqual(failed.map(({ path }) => path).sort(), ['closed', 'n\uFFFD', 'secret']);
  t.deepEqual(await disk.keys(), ['copy/closed/kept', 'copy/open/y', 'copy/secret']);

  const remote = await remoteFiles(disk);
  const copied = await asNobody(() => copy(up(source.path), { remote, output, jobs: 4 }));
  t.like(copied, { files: 1 });
  t.deepEqual(copied.failed.map(({ path }) => path).sort(), ['closed', 'n\uFFFD', 'secret']);
});

test('files that vanish while they are copied are named, and keep no others', async (t) => {
  await using source = await temporaryDirectory();
  await using disk = await FaultyDisk.start(t.context.api);
  disk.received = async (key) => {
    if (key === 'copy/a') await rm(join(source.path, 'b'), { force: true });
  };
  const options = { remote: await remoteFiles(disk), output, jobs: 1 };
  const contents = up(`${source.path}/.`);
  for (const work of [
    () => sync(contents, { ...options, deletes: false, isDry: false }),
    () => copy(contents, options),
  ]) {
    await makeFiles(source.path, { a: 'a', b: 'b', c: 'c' });
    const { files, failed } = await work();
    t.is(files, 2);
    t.regex(
      failed.map(({ path, error }) => `${path}: ${error}`).join(),
      /^b: ENOENT[^,]+, [^,]+$/u,
    );
    const { files: written } = await disk.open();
    for (const key of await disk.keys()) await written.remove(key);
  }
});

test('sync counts what was deleted, not what was to be', async (t) => {
  await using source = await temporaryDirectory();
  await using disk = await FaultyDisk.start(t.context.api, { 'copy/a': 'a', 'copy/b': 'b' });
  disk.refused.add('copy/b');
  const { deleted, failed } = await mirror(up(source.path), disk);
  t.is(deleted, 1);
  t.deepEqual(failed, [{ path: 'b', error: 'no' }]);
});

test('bytes count once when an upload has to be repeated', async (t) => {
  await using source = await temporaryDirectory();
  await using disk = await FaultyDisk.start(t.context.api);
  const files = { large: 'x'.repeat(2 * MiB), small: 'small' };
  await makeFiles(source.path, files);
  const broken = new Set<string>();
  disk.received = async (key) => {
    if (broken.has(key)) return;
    broken.add(key);
    throw new Error('the first attempt breaks off');
  };
  const { bytes, failed } = await mirror(up(source.path), disk);
  t.is(bytes, files.large.length + files.small.length);
  t.deepEqual([failed.length, broken.size, (await disk.keys()).length], [0, 2, 2]);
});

test('a directory of a disk may be named with /. at the end', async (t) => {
  await using directory = await temporaryDirectory();
  await using disk = await FaultyDisk.start(t.context.api, { 'dir/a': 'a', 'dir/deep/b': 'b' });
  const options = { remote: await remoteFiles(disk), output, jobs: 2 };
  const here = { kind: 'local', path: directory.path } as const;
  const there = { kind: 'remote', name: 'work' } as const;
  const from = { ...there, path: '/dir/.' };
  t.like(await copy({ direction: 'down', from, to: here }, options), { files: 2, failed: [] });
  t.is(await readFile(join(directory.path, 'deep/b'), 'utf8'), 'b');
  const file = { kind: 'local', path: join(directory.path, 'a') } as const;
  for (const path of ['dir/deep/.', 'new/.', '.']) {
    await copy({ direction: 'up', from: file, to: { ...there, path } }, options);
  }
  t.deepEqual(await disk.keys(), ['a', 'dir/a', 'dir/deep/a', 'dir/deep/b', 'new/a']);
});

test('edit says where the text is when the editor fails, and when saving does', async (t) => {
  await using directory = await temporaryDirectory();
  await using disk = await FaultyDisk.start(t.context.api, { notes: 'first\n' });
  disk.refused.add('notes');
  const cli = await Cli.in(directory.path);
  const editor = join(directory.path, 'editor');
  await writeFile(editor, '#!/bin/sh\necho more >> "$1"\nexit "$CODE"\n', { mode: 0o755 });
  const environment = { ...cli.environment, BERTH_URL: disk.url, BERTH_API_KEY: t.context.api.key };
  const words = [...cli.command, 'disk', 'edit', `${disk.name}:notes`];
  for (const [code, said] of [
    ['3', /editor failed: .*; your text is in (\/.+)\.\n/u],
    ['0', /berth: no: your text is in (\/.+)\.\n/u],
  ] as const) {
    const env = { ...environment, EDITOR: editor, CODE: code, TMPDIR: directory.path };
    await using terminal = await Terminal.open(directory.path, words, env);
    const [, kept = ''] = await terminal.shows(said);
    t.is(await readFile(kept, 'utf8').catch(() => kept), 'first\nmore\n');
  }
});

const down = (path: string): Transfer => ({
  direction: 'down',
  from: { kind: 'remote', name: 'work', path: 'copy' },
  to: { kind: 'local', path },
});

test('a download writes nothing through a link below its target', async (t) => {
  await using target = await temporaryDirectory();
  await using outside = await temporaryDirectory();
  await using disk = await FaultyDisk.start(t.context.api, {
    ...{ 'copy/in/deep/čaj': 'new', 'copy/link/file': 'new', 'copy/file/below': 'new' },
    ...{ 'copy/named': 'new', 'copy/plain': 'new' },
  });
  await makeFiles(outside.path, { file: 'old', named: 'old' });
  await makeFiles(target.path, { file: 'old' });
  await symlink(outside.path, join(target.path, 'link'));
  await symlink(join(outside.path, 'named'), join(target.path, 'named'));
  const remote = await remoteFiles(disk);
  for (const work of [
    () => sync(down(target.path), { remote, output, jobs: 4, deletes: false, isDry: false }),
    () => copy(down(`${target.path}/`), { remote, output, jobs: 4 }),
  ]) {
    const isSync = (await readFile(join(target.path, 'plain')).catch(() => '')) === '';
    const { failed } = await work();
    const paths = failed.map(({ path }) => path).toSorted();
    t.deepEqual(paths, isSync ? ['file/below', 'link/file'] : []);
    t.is(await readFile(join(outside.path, 'file'), 'utf8'), 'old');
    t.is(await readFile(join(outside.path, 'named'), 'utf8'), 'old');
    t.is(await readFile(join(target.path, 'named'), 'utf8'), 'new');
    t.is(await readFile(join(target.path, 'in/deep/čaj'), 'utf8'), 'new');
  }
  // The copy of a directory into another takes its name there, which may be a link, too.
  await rm(join(target.path, 'copy'), { recursive: true });
  await symlink(outside.path, join(target.path, 'copy'));
  await t.throwsAsync(copy(down(`${target.path}/`), { remote, output, jobs: 4 }), {
    message: /is a link or a file/u,
  });
  t.is(await readFile(join(outside.path, 'file'), 'utf8'), 'old');
  // A link that the user names is the user's word.
  const named = await copy(down(join(target.path, 'copy/')), { remote, output, jobs: 4 });
  t.deepEqual(named.failed, []);
  t.is(await readFile(join(outside.path, 'copy/plain'), 'utf8'), 'new');
});
