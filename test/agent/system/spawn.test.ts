import test from 'ava';
import { ProgramError, ProgramTimeoutError, run } from '../../../agent/system/spawn.ts';

test('gives what a program printed', async (t) => {
  t.is(await run('sh', ['-c', 'cat; echo err >&2'], { input: 'in\n' }), 'in\nerr\n');
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
