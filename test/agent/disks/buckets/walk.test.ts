/* The files of a disk, as its owner may have laid them out. */
import { link, mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { PathProblems } from '../../../../agent/disks/buckets/problems.ts';
import { walk } from '../../../../agent/disks/buckets/walk.ts';
import { native } from '../../../../agent/native/native.ts';
import { run } from '../../../../agent/system/spawn.ts';
import { MiB } from '../../../../shared/units.ts';
import { mountDisk } from '../../../helpers/mounted-disk.ts';
import { temporaryDirectory } from '../../../helpers/temporary.ts';

/** Makes nested directories of one name, each with files of the given names. */
const MAKE_NESTED = `
  my ($root, $name, $count, @files) = @ARGV;
  chdir $root or die $!;
  for (1 .. $count) {
    mkdir $name or die $!;
    chdir $name or die $!;
    for (@files) { open(my $file, ">", $_) or die $! }
  }`;

test('files too deep for their paths are counted, and the others found', async (t) => {
  await using disk = await mountDisk(96 * MiB);
  const { contents } = disk.layout;
  const [name, file, long] = ['d'.repeat(250), 'f'.repeat(60), 'l'.repeat(100)];
  await run('perl', ['-e', MAKE_NESTED, contents, name, '20', file, long]);
  const problems = new PathProblems();
  const files = await walk(contents, problems);
  // 4,096 bytes: 16 directories, of which the last one has a long name too many, and the one below.
  t.is(files.length, 31);
  t.is(Math.max(...files.map(({ path }) => path.length)), 16 * 251 + file.length);
  t.is(problems.count, 2);
});

test('directories that are nested deeper than keys can tell are left out', async (t) => {
  await using disk = await mountDisk(96 * MiB);
  const { contents } = disk.layout;
  await run('perl', ['-e', MAKE_NESTED, contents, 'd', '600', 'f']);
  const problems = new PathProblems();
  const files = await walk(contents, problems);
  t.is(files.length, 512);
  t.is(problems.count, 1);
});

test('a walk ends when there are more files, or bytes, than are asked for', async (t) => {
  await using directory = await temporaryDirectory();
  const root = directory.path;
  await mkdir(join(root, 'd'));
  await writeFile(join(root, 'd/f'), '');
  await link(join(root, 'd/f'), join(root, 'd/g')); // Each name counts.
  const whole = await native.walkFiles(root, 2, MiB);
  const bytes = await native.walkFiles(root, 2, whole.length);
  t.true(bytes.equals(whole));
  await t.throwsAsync(native.walkFiles(root, 1, MiB), { code: 'EOVERFLOW' });
  await t.throwsAsync(native.walkFiles(root, 2, whole.length - 1), { code: 'EOVERFLOW' });
});
