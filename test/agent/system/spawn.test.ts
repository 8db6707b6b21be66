import assert from 'node:assert';
import { existsSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import test from 'ava';
import {
  ProgramError,
  ProgramTimeoutError,
  run,
  spawnDetached,
  spawnLeashed,
} from '../../../agent/system/spawn.ts';
import { temporaryDirectory } from '../../helpers/temporary.ts';
import { waitFor } from '../../helpers/wait.ts';

test('gives what a program printed', async (t) => {
  t.is(await run('sh', ['-c', 'cat; echo err >&2'], { input: 'in\n' }), 'in\nerr\n');
});

/** Names of variables, but for those that a shell sets by itself. */
const namesOf = (printed: string): string[] =>
  [...printed.matchAll(/^(\w+)=/gmu)]
    .map(([, name = '']) => name)
    .filter((name) => !['PWD', 'OLDPWD', 'SHLVL', '_'].includes(name));

test('a program has PATH and the variables that its start names, and no others', async (t) => {
  t.true(Object.keys(process.env).length > 1);
  t.deepEqual(namesOf(await run('env', [])), ['PATH']);
  const environment = { CEPH_ARGS: '--id x' };
  t.deepEqual(namesOf(await run('env', [], { environment })), ['PATH', 'CEPH_ARGS']);
  for (const start of [spawnLeashed, spawnDetached]) {
    const { stdout } = start('env', [], { stdio: ['ignore', 'pipe', 'ignore'] });
    assert(stdout !== null);
    t.deepEqual(namesOf(await text(stdout)), ['PATH']);
  }
});

test('a program that fails is reported with its name, its exit code and its output', async (t) => {
  const failing = run('sh', ['-c', 'echo reason; exit 3']);
  await t.throwsAsync(failing, { instanceOf: ProgramError, message: 'sh ended with 3: reason' });
});

test('a program that is not there', async (t) => {
  const missing = run('nosuchprogram', []);
  await t.throwsAsync(missing, { instanceOf: ProgramError, message: /No such file/u });
});

test('a program that takes too long is killed', async (t) => {
  const endless = run('sleep', ['1000'], { timeoutMs: 50 });
  await t.throwsAsync(endless, { instanceOf: ProgramTimeoutError, message: /was killed/u });
});

test('endless words are cut, and input may go unread', async (t) => {
  const output = await run('sh', ['-c', 'head -c 10000000 /dev/zero'], { input: 'x'.repeat(1e6) });
  t.true(output.length < 1e6);
});

test('programs that read a locked file run side by side, and none beside one that has it alone', async (t) => {
  await using directory = await temporaryDirectory();
  const path = join(directory.path, 'file');
  await writeFile(path, '');
  const refused = { instanceOf: ProgramError, message: /^true ended with 126/u };
  // Each ends only once the other runs.
  const meet = (own: string, other: string): Promise<string> =>
    run('sh', ['-c', 'touch "$1"; until [ -e "$2" ]; do sleep 0.01; done', 'sh', own, other], {
      sharedLock: path,
    });
  const [one, two] = [join(directory.path, 'one'), join(directory.path, 'two')];
  await t.notThrowsAsync(Promise.all([meet(one, two), meet(two, one)]));
  for (const [held, wanted] of [
    [{ sharedLock: path }, { lock: path }],
    [{ lock: path }, { sharedLock: path }],
  ] as const) {
    const [begun, end] = ['begun', 'end'].map((name) => join(directory.path, name));
    assert(begun !== undefined && end !== undefined);
    const command = 'touch "$1"; until [ -e "$2" ]; do sleep 0.01; done; rm "$1" "$2"';
    const holding = run('sh', ['-c', command, 'sh', begun, end], held);
    await waitFor('the program to begin', async () => existsSync(begun));
    await t.throwsAsync(run('true', [], wanted), refused);
    await writeFile(end, '');
    await holding;
    await t.notThrowsAsync(run('true', [], wanted));
  }
});
