/** Runs `npm test` and prints a last line with the numbers of tests that passed and failed. */
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { stripVTControlCharacters } from 'node:util';
import { paths } from './local-paths.ts';

const TICK = /^\s+[✔√] /u;
/** Failures in AVA's summary. It does not count passed tests when there are any. */
const FAILURE = /^\s*(\d+) (?:tests? failed|uncaught exceptions?|unhandled rejections?)$/u;

const child = spawn('npm', ['test', '--', ...process.argv.slice(2)], {
  cwd: paths.root,
  stdio: ['inherit', 'pipe', 'inherit'],
});
const exited = new Promise<number>((resolve) => {
  child.once('exit', (code) => resolve(code ?? 1));
});
let passed = 0;
let failed = 0;
for await (const line of createInterface({ input: child.stdout })) {
  console.log(line);
  const plain = stripVTControlCharacters(line);
  if (TICK.test(plain)) passed += 1;
  failed += Number(FAILURE.exec(plain)?.[1] ?? 0);
}
const code = await exited;
// A time-out or a crash of AVA itself counts as a failure, although no test is named.
if (code !== 0) failed = Math.max(failed, 1);
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = code;
