import test from 'ava';
import { execFile } from 'node:child_process';
import { mkdir, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { temporaryDirectory } from '../helpers/temporary.ts';

const execute = promisify(execFile);
const root = join(import.meta.dirname, '../..');

const PASSES = "import test from 'ava';\ntest('passes', (t) => t.pass());\n";
const FAILS = "import test from 'ava';\ntest('fails', (t) => t.fail());\n";
/** Fails, or does what the second line says, until it has run before. */
const flaky = (otherwise: string): string => `import test from 'ava';
import { existsSync, writeFileSync } from 'node:fs';
const mark = import.meta.filename + '.ran';
const isFirst = !existsSync(mark);
writeFileSync(mark, '');
test('a › flaky one', async (t) => {
  if (isFirst) ${otherwise};
  t.pass();
});
`;

interface Outcome {
  readonly code: number;
  readonly output: string;
}

/** Runs the script in a project of its own with these test files. */
async function runTests(
  files: Readonly<Record<string, string>>,
  args: readonly string[] = [],
): Promise<Outcome> {
  await using directory = await temporaryDirectory();
  const project = {
    type: 'module',
    scripts: { test: 'ava' },
    ava: { extensions: ['ts'], files: ['test/**/*.test.ts'], timeout: '5s', workerThreads: false },
  };
  await writeFile(join(directory.path, 'package.json'), JSON.stringify(project));
  await symlink(join(root, 'node_modules'), join(directory.path, 'node_modules'));
  for (const [name, text] of Object.entries(files)) {
    const path = join(directory.path, 'test', `${name}.test.ts`);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, text);
  }
  const script = [join(root, 'scripts/run-tests.ts'), ...args];
  const { stdout, code } = await execute(process.execPath, script, {
    cwd: directory.path,
    env: {
      PATH: `${join(root, 'node_modules/.bin')}:${process.env['PATH']}`,
      HOME: directory.path,
    },
  }).then(
    (done) => ({ ...done, code: 0 }),
    (error: { stdout: string; code: number }) => error,
  );
  return { code, output: stdout };
}

test('a file that failed runs again by itself, and is named when it passes then', async (t) => {
  const { code, output } = await runTests({
    'a/one': PASSES,
    'a/b/two': flaky('t.fail()'),
    'c/three': flaky("throw new Error('unexpected')"),
    'c/four': flaky("setImmediate(() => { throw new Error('uncaught') })"),
  });
  t.is(code, 0, output);
  t.regex(output, /^Passed only the second time: .*test\/a\/b\/two\.test\.ts/mu);
  t.regex(output, /^Passed only the second time: .*test\/c\/three\.test\.ts/mu);
  t.regex(output, /\n4 passed, 0 failed\n$/u);
});

test('what fails twice has failed', async (t) => {
  const { code, output } = await runTests({ 'a/one': PASSES, 'a/two': FAILS });
  t.is(code, 1, output);
  t.notRegex(output, /^Passed only the second time/mu);
  t.regex(output, /\n1 passed, 1 failed\n$/u);
});

test('files that a time-out cut off run again, with those that had not begun', async (t) => {
  const hangs = flaky('await new Promise((resolve) => { setTimeout(resolve, 1e8) })');
  const { code, output } = await runTests({ 'a/one': PASSES, 'b/two': hangs });
  t.is(code, 0, output);
  t.regex(output, /Timed out while running tests/u);
  t.regex(output, /^Passed only the second time: test\/b\/two\.test\.ts$/mu);
  t.regex(output, /\n2 passed, 0 failed\n$/u);
});

test('failures in many files are no accident and do not run again', async (t) => {
  const names = Array.from({ length: 13 }, (_, index) => `a/number${index}`);
  const { code, output } = await runTests(
    Object.fromEntries(names.map((name) => [name, flaky('t.fail()')])),
  );
  t.is(code, 1, output);
  t.notRegex(output, /^Running again/mu);
  t.regex(output, /\n0 passed, 13 failed\n$/u);
});

test('tests see shared mounts, as on hosts with systemd, and must leave none behind', async (t) => {
  const { code, output } = await runTests({
    'a/one': `import test from 'ava';
import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
test('mounts', (t) => {
  t.is(execFileSync('findmnt', ['-no', 'PROPAGATION', '/'], { encoding: 'utf8' }), 'shared\\n');
  mkdirSync('left');
  execFileSync('mount', ['-t', 'tmpfs', 'none', 'left']);
});
`,
  });
  t.is(code, 1, output);
  t.regex(output, /^Mounts left behind .*\n.* \/tmp\/\S+\/left$/mu);
  t.regex(output, /\n1 passed, 1 failed\n$/u);
});

test('a run of chosen files tells their failures at once', async (t) => {
  const { code, output } = await runTests({ 'a/two': flaky('t.fail()') }, ['test/a/two.test.ts']);
  t.is(code, 1, output);
  t.regex(output, /\n0 passed, 1 failed\n$/u);
});
