import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { deviceWrites } from '../../../agent/buckets/device-writes.ts';
import { MiB } from '../../../shared/units.ts';

const run = promisify(execFile);

/** A mounted ext4 image with a few files. */
async function mountedImage(): Promise<AsyncDisposable & { readonly mount: string }> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-test-'));
  const [image, mount] = [join(directory, 'image'), join(directory, 'mount')];
  await mkdir(mount);
  await writeFile(image, '');
  await run('truncate', ['-s', String(32 * MiB), image]);
  await run('mkfs.ext4', ['-q', image]);
  await run('mount', ['-o', 'loop', image, mount]);
  for (const name of ['a', 'b', 'c']) await writeFile(join(mount, name), 'x'.repeat(9_000));
  return {
    mount,
    [Symbol.asyncDispose]: async () => {
      await run('umount', [mount]);
      await rm(directory, { recursive: true });
    },
  };
}

/** ext4 makes the tables of a new file system in the background, and marks reads once (relatime). */
async function untilQuiet(mount: string): Promise<string> {
  for (let before = await deviceWrites(mount); ;) {
    const now = await deviceWrites(mount);
    if (now === undefined) throw new Error('the host does not count writes');
    if (now === before) return now;
    before = now;
  }
}

const PYTHON_MMAP = `
import mmap
f = open('a', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[5] = 65
`;

/** Each is run by a shell in the root of the file system. */
const CHANGES: Readonly<Record<string, string>> = {
  'a new empty file': 'touch new',
  'a write in place': 'printf y | dd of=a conv=notrunc bs=1 seek=100 status=none',
  'a write of the same bytes': 'printf x | dd of=a conv=notrunc bs=1 seek=100 status=none',
  'a write through a mapping': `python3 -c "${PYTHON_MMAP}"`,
  'an appended byte': 'printf y >> b',
  'a cut by path': `perl -e 'truncate("b", 4) or die'`,
  'a rename': 'mv a z',
  'an exchange by rename': 'mv a z && mv b a && mv z b',
  'a link': 'ln a d',
  'a removal': 'rm c',
  'a mode': 'chmod 600 a',
  'the times': "touch -d '2001-01-01' a",
  'an attribute': 'setfattr -n user.x -v 1 a || attr -s x -V 1 a || chmod 640 a',
  'a directory': 'mkdir dir',
};

test('writes to the device are the same while nothing is written', async (t) => {
  await using image = await mountedImage();
  const quiet = await untilQuiet(image.mount);
  await run('sh', ['-c', 'cat a b c > /dev/null; ls -lR > /dev/null'], { cwd: image.mount });
  await untilQuiet(image.mount); // The first read of a file notes its time.
  const before = await untilQuiet(image.mount);
  await run('sh', ['-c', 'cat a b c > /dev/null; ls -lR > /dev/null'], { cwd: image.mount });
  t.is(await deviceWrites(image.mount), before);
  t.not(quiet, '');
});

test('writes to the device are others after every kind of change', async (t) => {
  for (const [name, command] of Object.entries(CHANGES)) {
    await using image = await mountedImage();
    const before = await untilQuiet(image.mount);
    await run('sh', ['-ec', command], { cwd: image.mount });
    t.not(await deviceWrites(image.mount), before, name);
  }
});

test('a mapping that stays is seen at each of its writes', async (t) => {
  await using image = await mountedImage();
  const script = `
import mmap, sys
f = open('a', 'r+b'); m = mmap.mmap(f.fileno(), 0)
for line in sys.stdin:
  m[int(line)] ^= 1
  print('done', flush=True)
`;
  const child = execFile('python3', ['-c', script], { cwd: image.mount });
  const { stdin, stdout } = child;
  if (stdin === null || stdout === null) throw new Error('no pipes');
  const lines = stdout[Symbol.asyncIterator]();
  for (let i = 0; i < 5; i += 1) {
    const before = await untilQuiet(image.mount);
    stdin.write('7\n');
    await lines.next();
    t.not(await deviceWrites(image.mount), before, `write ${i}`);
  }
  stdin.end();
  await new Promise((resolve) => child.once('exit', resolve));
});

test('a file system without a device of its own is not counted', async (t) => {
  t.is(await deviceWrites('/dev/shm'), undefined);
});
