/* The commands of the guides as a newcomer runs them, one guide after the other in one account. */
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import anyTest, { type TestFn } from 'ava';
import { containerSettings } from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';

const test = anyTest as TestFn<{ stack: Stack; directory: string }>;
const execute = promisify(execFile);
const root = join(import.meta.dirname, '../..');

test.before(async (t) => {
  const directory = await mkdtemp(join(tmpdir(), 'berth-test-commands-'));
  t.context = { stack: await Stack.start(containerSettings()), directory };
});

test.after.always(async (t) => {
  const { stack, directory } = t.context as Partial<typeof t.context>;
  await stack?.stop();
  if (directory !== undefined) await rm(directory, { recursive: true });
});

/** Every command fails whose answer is an error; what the last one answered can be asked for. */
const PRELUDE = `set -eo pipefail
curl() { command curl --fail-with-body "$@" | tee -a log | tee last; }
last() { python3 -c 'import json,sys; print(eval("json.load(open(\\"last\\"))" + sys.argv[1]))' "$1"; }
`;

/** Values that a reader takes from the answer before. */
const FROM_ANSWER: readonly (readonly [RegExp, string])[] = [
  [/^\.\/scripts\/up.*$/gmu, ''],
  [/^DISK=.*$/gmu, `DISK=$(last '["data"]["id"]')`],
  [/^SANDBOX=.*$/gmu, `SANDBOX=$(last '["data"]["sandbox_id"]')`],
  // The link that was made last, for what follows in other guides.
  [/(\/share" [\s\S]*?\}'\n)/gu, `$1URL=$(last '["data"]["url"]')\n`],
  // The three lines that a command prints.
  [
    /(sep="\\n"\)')/gu,
    '$1 | tee lines\n{ read -r DISK; read -r IDENTIFIER; read -r TOKEN; } <lines',
  ],
];

/** The commands of a guide that call the API, and how it says that its program is run. */
async function commandsOf(file: string): Promise<string> {
  const text = await readFile(join(root, file), 'utf8');
  const blocks = [...text.matchAll(/^```sh\n([\s\S]*?)^```$/gmu)].map(([, block = '']) => block);
  const used = blocks.filter((block) => /curl |npx berth /u.test(block));
  const program = /`(npx node [^`]*first\.ts)`/u.exec(text)?.[1];
  if (program !== undefined) used.push(program);
  return FROM_ANSWER.reduce((script, [from, to]) => script.replaceAll(from, to), used.join('\n'));
}

/** Makes a folder look like a checkout whose stack is this one, with the README's program in it. */
async function makeCheckout(directory: string, variables: Record<string, string>): Promise<void> {
  await symlink(join(root, 'node_modules'), join(directory, 'node_modules'));
  await mkdir(join(directory, '.local'));
  const lines = Object.entries(variables).map(([name, value]) => `${name}=${value}\n`);
  await writeFile(join(directory, '.local/env'), lines.join(''));
  const readme = await readFile(join(root, 'README.md'), 'utf8');
  const program = /^```ts\n([\s\S]*?)^```$/mu.exec(readme)?.[1] ?? '';
  await writeFile(join(directory, 'first.ts'), program);
}

test('the commands of README, API and object API work as they are written', async (t) => {
  const { stack, directory } = t.context;
  const api = await stack.newClient();
  const guides = ['README.md', 'docs/api.md', 'docs/object-api.md'];
  const scripts = await Promise.all(guides.map(commandsOf));
  // A guide begins with a disk of its own; the last one needs an object there.
  const put =
    'command curl -sSf -T log -H "Authorization: $API_KEY" "$S3_URL/$DISK/file"\ncurl -sS --aws';
  const script = `${PRELUDE}${scripts.join('\n')}`.replace('curl -sS --aws', put);
  const variables = {
    BASE_URL: stack.baseUrl,
    API_KEY: api.key,
    S3_URL: stack.environment['AGENT_PUBLIC_URL'] ?? '',
  };
  await makeCheckout(directory, variables);
  const run = execute('bash', ['--norc', '-c', script], {
    cwd: directory,
    // The command line belongs to this checkout, whose own stack it would use otherwise.
    env: {
      ...{ PATH: process.env['PATH'], HOME: directory, ...variables },
      ...{ BERTH_URL: stack.baseUrl, BERTH_API_KEY: api.key },
    },
  });
  const failure = await run.then(
    () => undefined,
    (error: unknown) => error as { stderr: string },
  );
  const log = await readFile(join(directory, 'log'), 'utf8');
  t.is(failure?.stderr, undefined, log.slice(-500));
  t.true((script.match(/^ *curl /gmu) ?? []).length >= 15);
  t.true((script.match(/^npx berth /gmu) ?? []).length >= 4);
  t.regex(script, /^npx node .* first\.ts$/mu);
});
