import { closeSync } from 'node:fs';
import { mkdir, open } from 'node:fs/promises';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';
import test from 'ava';
import { native } from '../../../agent/native/native.ts';
import { startLeashed } from '../../../agent/system/start-program.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';

const nothing = [undefined, undefined, undefined];

/** Output that a shell command writes to descriptor 3, and how it ended. */
async function runShell(command: string): Promise<{ output: string; ending: number | string }> {
  const [readFd, writeFd] = native.pipe();
  const output = text(new Socket({ fd: readFd, readable: true, writable: false }));
  const program = await startLeashed('sh', ['-c', command], [...nothing, writeFd]);
  closeSync(writeFd);
  return { output: await output, ending: await program.ended };
}

test('a program has its descriptors from 3 on, no environment but PATH, and no input', async (t) => {
  const { output, ending } = await runShell('cat; env >&3; echo to-nobody; exit 7');
  t.is(ending, 7);
  t.deepEqual(
    output
      .split('\n')
      .filter((line) => line !== '' && !/^(?:PATH|PWD|_|SHLVL|OLDPWD)=/u.test(line)),
    [],
  );
  t.regex(output, /^PATH=/mu);
});

test('descriptors keep their order, whatever numbers they have here', async (t) => {
  const pipes = [native.pipe(), native.pipe(), native.pipe()];
  const outputs = pipes.map(([fd]) => text(new Socket({ fd, readable: true, writable: false })));
  const writeFds = pipes.map(([, fd]) => fd).toReversed();
  const command = 'echo three >&3; echo four >&4; echo five >&5';
  const { ended } = await startLeashed('sh', ['-c', command], [...nothing, ...writeFds]);
  for (const fd of writeFds) closeSync(fd);
  t.deepEqual(await Promise.all(outputs), ['five\n', 'four\n', 'three\n']);
  t.is(await ended, 0);
});

test('signals are not ignored, and one that ends a program is named', async (t) => {
  t.is((await runShell('kill -PIPE $$')).ending, 'SIGPIPE');
  t.is((await runShell('kill -KILL $$')).ending, 'SIGKILL');
});

test('a program is in a session of its own, and has no descriptors but its own', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'opened-here');
  await using file = await open(path, 'w');
  const command = 'ls -l /proc/$$/fd >&3; cut -d" " -f6 /proc/$$/stat >&3; echo $$ >&3';
  const { output } = await runShell(command);
  t.true(file.fd > 3);
  t.regex(output, / 3 -> pipe/u);
  t.notRegex(output, /opened-here/u);
  const [session, pid] = output.trim().split('\n').slice(-2);
  t.is(session, pid);
});

test('a program that is not there', async (t) => {
  const { ended } = await startLeashed('nosuchprogram', [], []);
  t.is(await ended, 127);
});

test('the ends of many programs at the same time are all heard of', async (t) => {
  const programs = await Promise.all(
    Array.from({ length: 40 }, (_, i) => startLeashed('sh', ['-c', `exit ${i}`], [])),
  );
  const endings = await Promise.all(programs.map(({ ended }) => ended));
  t.deepEqual(endings, [...endings.keys()]);
  for (const { pid } of programs) t.throws(() => native.reap(pid), { code: 'ECHILD' });
});

test('invalid arguments are refused', (t) => {
  const untyped = native as unknown as Record<string, (...args: unknown[]) => unknown>;
  for (const name of ['spawn', 'reap']) {
    t.throws(() => untyped[name]?.());
    t.throws(() => untyped[name]?.('x', {}, {}, {}));
  }
  t.throws(() => native.spawn('/bin/true', ['a\0b'], [], []), { code: 'EINVAL' });
  t.throws(
    () =>
      native.spawn(
        '/bin/true',
        Array.from({ length: 2000 }, () => 'x'),
        [],
        [],
      ),
    { code: 'EINVAL' },
  );
});

test('a program that is being started keeps no file of this process open', async (t) => {
  await using directory = await temporaryDirectory();
  const disk = join(directory.path, 'disk');
  await mkdir(disk);
  const starts = new AbortController();
  const starting = (async () => {
    while (!starts.signal.aborted) await (await startLeashed('true', [], nothing)).ended;
  })();
  for (let round = 0; round < 50; round += 1) {
    await native.mount('tmpfs', disk, 'tmpfs', 0, 'size=1m');
    const file = await open(join(disk, 'file'), 'w');
    await setTimeout(2);
    await file.close();
    await t.notThrowsAsync(native.unmount(disk, 0));
  }
  starts.abort();
  await starting;
});
