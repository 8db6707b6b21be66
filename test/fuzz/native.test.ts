/*
 * The C sources on the inputs that fuzzing has kept, under AddressSanitizer and
 * UndefinedBehaviorSanitizer; see test/fuzz/native/Makefile.
 */
import { readdir } from 'node:fs/promises';
import test from 'ava';
import { run } from '../../agent/system/spawn.ts';

const directory = new URL('native', import.meta.url).pathname;
const make = async (...args: string[]): Promise<string> =>
  run('make', ['-s', '-C', directory, 'KIND=replay', ...args], { timeoutMs: 170_000 });

const targets = (await make('targets')).trim().split(' ');

test.before('the targets are built', async () => {
  await make('-j2', 'all');
});

test('Each corpus has a target and each target a corpus', async (t) => {
  t.deepEqual((await readdir(`${directory}/corpus`)).toSorted(), targets.toSorted());
});

for (const target of targets) {
  test(`${target} has no defect on its corpus`, async (t) => {
    const inputs = (await readdir(`${directory}/corpus/${target}`)).length;
    const output = await make('replay', `TARGET=${target}`); // On failure the error's message contains the sanitizer's report.
    t.true(inputs > 0);
    t.true(output.split('\n').includes(`${target} ${inputs}`), output);
  });
}
