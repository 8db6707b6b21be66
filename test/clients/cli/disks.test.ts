/* `berth disk …` against a real stack, profiles, and completion by real shells. */
import { execFile } from 'node:child_process';
import { chmod, cp, mkdir, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { Cli } from '../../helpers/cli.ts';
import { stackTest } from '../../helpers/stack-test.ts';
import { Terminal } from '../../helpers/terminal.ts';

const test = stackTest({}, async ({ stack, api }) => ({
  cli: await Cli.in(stack.directory, api),
  /** A directory of one test's own. */
  place: async (name: string): Promise<string> => {
    const path = join(stack.directory, 'files', name);
    await mkdir(path, { recursive: true });
    return path;
  },
}));

test('a disk is made, used, searched, shared and deleted', async (t) => {
  const { cli } = t.context;
  const { id } = await cli.json<{ id: string }>('disk', 'create', 'work');
  const ran = await cli.run(['disk', 'exec', 'work', 'echo hello > file; echo err >&2; exit 3']);
  t.deepEqual(ran, { code: 3, stdout: '', stderr: 'err\n' });
  const words = await cli.output('disk', 'exec', id, '--', 'printf', '<%s>', 'a b', '-n', "it's");
  t.is(words, "<a b><-n><it's>");
  t.is(await cli.output('disk', 'grep', 'work', 'h.llo'), 'file:1:hello\n');
  t.is((await cli.run(['disk', 'grep', 'work', 'nothing'])).code, 1);
  const url = await cli.output('disk', 'share', 'work:/file', '--expires', '5m');
  t.is(await (await fetch(url.trim())).text(), 'hello\n');
  t.regex(await cli.output('disk', 'ls'), /^NAME .*\n(?:.*\n)*work +available /u);
  const refused = await cli.run(['disk', 'rm', 'work']);
  t.is(refused.code, 1);
  t.regex(refused.stderr, /^berth: nobody can be asked here: add --yes to delete work/u);
  t.regex(await cli.output('disk', 'rm', 'work', '--dry-run'), /^would delete work/u);
  t.is(await cli.output('disk', 'rm', 'work', '--yes'), 'work is deleted\n');
  const gone = await cli.run(['disk', 'get', 'work', '--json']);
  t.like(JSON.parse(gone.stderr), { error: { message: 'there is no disk work' } });
});

test('profiles are kept for their user alone', async (t) => {
  const { cli, api } = t.context;
  const env = { BERTH_URL: undefined, BERTH_API_KEY: undefined };
  const run = (args: string[], input = '') => cli.run(args, { env, input });
  t.like(await run(['disk', 'ls']), {
    code: 1,
    stderr: 'berth: no server is configured: run berth login.\n',
  });
  const login = ['login', '--url', api.baseUrl, '--key-stdin'];
  t.regex((await run(login, 'key-wrong')).stderr, /^berth: the API key is not valid/u);
  t.is((await run(login, `${api.key}\n`)).code, 0);
  const file = join(cli.environment['HOME'] ?? '', '.config/berth/profiles.json');
  t.is((await stat(file)).mode & 0o777, 0o600);
  t.is((await run(['disk', 'ls'])).code, 0);
  t.is((await run([...login, '--profile', 'other'], api.key)).code, 0);
  t.regex((await run(['profile', 'ls'])).stdout, /^\* +other/mu);
  t.is((await run(['profile', 'use', 'default'])).code, 0);
  t.regex((await run(['disk', 'ls', '--profile', 'nobody'])).stderr, /there is no profile nobody/u);
  await rm(file);
});

test('doctor says whether the server answers and knows the key', async (t) => {
  const { cli, api } = t.context;
  const { findings } = await cli.json<{ findings: { check: string; level: string }[] }>('doctor');
  t.deepEqual(
    findings.map(({ check, level }) => [check, level]),
    [
      ['client', 'ok'],
      ['server', 'ok'],
      ['clock', 'ok'],
    ],
  );
  const env = { BERTH_URL: api.baseUrl, BERTH_API_KEY: 'key-wrong' };
  const failed = await cli.run(['doctor'], { env });
  t.is(failed.code, 1);
  t.regex(failed.stdout, /^✗ server: .*: run berth login$/mu);
});

test('the packed program is installed and runs elsewhere', async (t) => {
  const { cli, place } = t.context;
  const project = await place('package');
  const run = promisify(execFile);
  const path = `${dirname(process.execPath)}:${process.env['PATH'] ?? ''}`;
  const env = { ...process.env, PATH: path };
  const pack = ['pack', '--json', '--pack-destination', project];
  const cwd = join(import.meta.dirname, '../../../clients/cli');
  const packed = await run('npm', pack, { cwd, env });
  const [, filename = ''] = /"filename": "([^"]+)"/u.exec(packed.stdout) ?? [];
  await writeFile(join(project, 'package.json'), '{"private":true}');
  const install = ['install', '--offline', '--no-audit', join(project, filename)];
  await run('npm', install, { cwd: project, env });
  const berth = join(project, 'node_modules/.bin/berth');
  const options = { cwd: project, env: { ...cli.environment, PATH: path } };
  await run(berth, ['disk', 'create', 'elsewhere'], options);
  t.regex((await run(berth, ['disk', 'ls'], options)).stdout, /^elsewhere +available/mu);
});

test('in a checkout, what scripts/up has written is used when nothing else is configured', async (t) => {
  const { cli, api, place } = t.context;
  const root = await place('checkout');
  await cp(dirname(cli.command[1]), join(root, 'clients/cli/dist'), { recursive: true });
  await mkdir(join(root, 'scripts'));
  await mkdir(join(root, '.local'));
  await writeFile(join(root, 'scripts/up'), '');
  await writeFile(join(root, '.local/env'), `BASE_URL=${api.baseUrl}\nAPI_KEY=${api.key}\n`);
  const main = join(root, 'clients/cli/dist/main.js');
  const env = { ...cli.environment };
  for (const name of ['BERTH_URL', 'BERTH_API_KEY']) Reflect.deleteProperty(env, name);
  const shown = await promisify(execFile)(process.execPath, [main, 'profile', 'show'], { env });
  t.regex(shown.stdout, new RegExp(`${api.baseUrl}\\n.*${root}/\\.local/env\\n`, 'u'));
});

/** How shells load the script, with a line that shows that they have. */
const SHELLS = {
  bash: ['bash', '--norc', '-i'],
  zsh: ['zsh', '-f', '-i'],
  fish: ['fish', '--no-config', '-i'],
} as const;

const LOAD = {
  bash: 'eval "$(berth completion bash)"; echo loa""ded',
  zsh: 'autoload -U compinit; compinit -u; eval "$(berth completion zsh)"; echo loa""ded',
  fish: 'berth completion fish | source; echo loa""ded',
} as const;

for (const shell of ['bash', 'zsh', 'fish'] as const) {
  test(`${shell} completes commands, options, and names that only the server knows`, async (t) => {
    const { cli, stack } = t.context;
    const disk = `complete-${shell}`;
    await cli.output('disk', 'create', disk);
    const bin = join(stack.directory, `bin-${shell}`);
    await mkdir(bin);
    const quoted = cli.command.map((word) => `'${word}'`).join(' ');
    await writeFile(join(bin, 'berth'), `#!/bin/sh\nexec ${quoted} "$@"\n`);
    await chmod(join(bin, 'berth'), 0o755);
    const environment = { ...cli.environment, PATH: `${bin}:${cli.environment['PATH']}` };
    const size = { cols: 120, rows: 40 };
    await using terminal = await Terminal.open(stack.directory, SHELLS[shell], environment, size);
    await terminal.enter(LOAD[shell]);
    await terminal.shows(/^loaded$/mu);
    await terminal.type('berth disk cre');
    await terminal.press('Tab');
    await terminal.shows(/berth disk create /u);
    await terminal.press('C-c');
    await terminal.type('berth disk ls --qui');
    await terminal.press('Tab');
    await terminal.shows(/ls --quiet/u);
    await terminal.press('C-c');
    await terminal.type(`berth disk share ${disk.slice(0, -1)}`);
    await terminal.press('Tab');
    await terminal.shows(new RegExp(`share ${disk}:`, 'u'));
    t.pass();
  });
}
