/* `berth disk …` against a real stack, profiles, and completion by real shells. */
import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import {
  chmod,
  cp,
  mkdir,
  readdir,
  readFile,
  rm,
  stat,
  symlink,
  utimes,
  writeFile,
} from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { Cli } from '../../helpers/cli.ts';
import { isFull } from '../../helpers/full.ts';
import { stackTest } from '../../helpers/stack-test.ts';
import { Terminal } from '../../helpers/terminal.ts';
import { waitFor } from '../../helpers/wait.ts';
import { MiB } from '../../../shared/units.ts';

const FILES = isFull ? 10_000 : 200;
/** Names that shells, options, URLs and terminals stumble over. */
const ODD = [
  'a b',
  '-rf',
  'line\nbreak',
  'ünïcode',
  '100%+&?#',
  'it\'s "quoted"',
  'tab\there',
  '..x',
];

interface Tally {
  readonly files: number;
  readonly bytes: number;
  readonly unchanged: number;
  readonly deleted: number;
}

const { serial: test } = stackTest({}, async ({ stack, api }) => ({
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
  for (const [search, code] of [
    ['work nothing', 1],
    ['work hello none', 2],
    ['work (', 2],
    ['nowhere hello', 2],
  ] as const) {
    const line = ['disk', 'grep', ...search.split(' ')];
    t.is((await cli.run(line)).code, code, search);
    t.is((await cli.run([...line, '--json'])).code, code, `${search} --json`);
  }
  t.is(await cli.output('disk', 'cat', 'work:file'), 'hello\n');
  const url = await cli.output('disk', 'share', 'work:/file', '--expires', '5m');
  t.is(await (await fetch(url.trim())).text(), 'hello\n');
  t.regex(await cli.output('disk', 'ls'), /^NAME .*\n(?:.*\n)*work +available /u);
  t.regex(await cli.output('disk', 'ls', 'work:'), / file$/mu);
  const here = join(cli.directory, 'kept');
  await mkdir(here);
  await writeFile(join(here, 'file'), 'kept');
  const none = 'work:none';
  for (const line of [
    ['cat', none],
    ['share', none],
    ['ls', none],
    ['cp', none, '-'],
    ['sync', none, here, '--delete'],
    ['cp', none, '.'],
  ]) {
    const { code, stderr } = await cli.run(['disk', ...line]);
    t.deepEqual(
      [code, stderr],
      [1, `berth: there is nothing at ${none}: look at the name again.\n`],
    );
  }
  t.is(await readFile(join(here, 'file'), 'utf8'), 'kept');
  const refused = await cli.run(['disk', 'rm', 'work']);
  t.is(refused.code, 1);
  t.regex(refused.stderr, /^berth: nobody can be asked here: add --yes to delete work/u);
  t.regex(await cli.output('disk', 'rm', 'work', '--dry-run'), /^would delete work/u);
  t.is(await cli.output('disk', 'rm', 'work', '--yes'), 'work is deleted\n');
  const gone = await cli.run(['disk', 'cat', 'work:file', '--json']);
  const error = { code: 'not_found', message: 'there is no disk work', next: 'see berth disk ls' };
  t.deepEqual(JSON.parse(gone.stderr), { error });
});

test('cp takes any name both ways, and stdin and stdout', async (t) => {
  const { cli, place } = t.context;
  await cli.output('disk', 'create', 'copies');
  const source = await place('cp-source');
  await mkdir(join(source, 'deep/er'), { recursive: true });
  const large = randomBytes(5 * MiB);
  await writeFile(join(source, 'deep/er/large'), large);
  for (const name of ODD) await writeFile(join(source, name), `in ${name}`);
  await chmod(join(source, 'a b'), 0o750);
  await symlink('/etc/passwd', join(source, 'link'));
  const up = await cli.run(['disk', 'cp', '-r', source, 'copies:tree']);
  t.is(up.code, 0, up.stderr);
  t.regex(up.stderr, /^skipped, .*: link$/mu);
  t.is(await cli.output('disk', 'exec', 'copies', 'stat -c %a "tree/a b"'), '750\n');
  const target = await place('cp-target');
  await cli.output('disk', 'cp', 'copies:tree', target);
  t.deepEqual(await readdir(join(target, 'tree')), [...ODD, 'deep'].sort());
  for (const name of ODD) t.is(await readFile(join(target, 'tree', name), 'utf8'), `in ${name}`);
  t.true(large.equals(await readFile(join(target, 'tree/deep/er/large'))));
  // Options end at `--`, so that a local name may begin with a dash.
  const dashed = await cli.run(['disk', 'cp', '--', '-rf', 'copies:'], { cwd: source });
  t.is(dashed.code, 0, dashed.stderr);
  t.is(await cli.output('disk', 'cat', 'copies:-rf'), 'in -rf');
  const input = randomBytes(3 * MiB);
  t.is((await cli.run(['disk', 'cp', '-', 'copies:piped'], { input })).code, 0);
  const sum = await cli.output('disk', 'exec', 'copies', 'stat -c %s piped');
  t.is(sum, `${input.length}\n`);
  t.is(await cli.output('disk', 'cp', 'copies:tree/a b', '-'), 'in a b');
  const slow = `'${cli.command.join("' '")}' disk cp copies:tree/deep/er/large - |
    (for i in $(seq 50); do sleep 0.01; dd bs=64k count=1 status=none; done; cat) | wc -c`;
  const read = await promisify(execFile)('/bin/sh', ['-c', slow], { env: cli.environment });
  t.like(read, { stdout: `${large.length}\n`, stderr: '' });
  const wrong = await cli.run(['disk', 'cp', 'here', 'there']);
  t.is(wrong.code, 2);
});

test('sync takes any name both ways, and removes it', async (t) => {
  const { cli, place } = t.context;
  await cli.output('disk', 'create', 'odd');
  const source = await place('odd-source');
  for (const name of ODD) await writeFile(join(source, name), `in ${name}`);
  const sync = (...args: string[]): Promise<Tally> => cli.json<Tally>('disk', 'sync', ...args);
  t.like(await sync(source, 'odd:copy'), { files: ODD.length });
  t.like(await sync(source, 'odd:copy'), { files: 0, unchanged: ODD.length });
  const target = await place('odd-target');
  t.like(await sync('odd:copy', target), { files: ODD.length });
  for (const name of ODD) t.is(await readFile(join(target, name), 'utf8'), `in ${name}`);
  for (const name of ODD.slice(1)) await rm(join(source, name));
  t.like(await sync(source, 'odd:copy', '--delete'), { files: 0, deleted: ODD.length - 1 });
  t.like(await sync('odd:copy', target, '--delete'), { deleted: ODD.length - 1 });
  t.deepEqual(await readdir(target), ODD.slice(0, 1));
});

async function fill(directory: string, files: number): Promise<void> {
  for (let i = 0; i < files; i += 1) {
    const path = join(directory, `d${i % 10}`, `f${i}`);
    if (i < 10) await mkdir(join(directory, `d${i}`), { recursive: true });
    await writeFile(path, `file ${i}`.repeat(1 + (i % 50)));
  }
}

test('sync transfers what differs, goes on where it was interrupted, and deletes when it is told to', async (t) => {
  const { cli, place } = t.context;
  await cli.output('disk', 'create', 'synced');
  const source = await place('sync-source');
  await fill(source, FILES);
  const sync = (...args: string[]): Promise<Tally> => cli.json<Tally>('disk', 'sync', ...args);
  const listed = async (): Promise<number> =>
    Number(await cli.output('disk', 'exec', 'synced', 'find . -type f | wc -l'));

  const [node, main] = cli.command;
  const first = spawn(node, [main, 'disk', 'sync', source, 'synced:copy', '--jobs', '2'], {
    env: cli.environment,
    stdio: 'ignore',
  });
  await waitFor('the first files', async () => (await listed()) > 5);
  first.kill('SIGKILL');
  const second = await sync(source, 'synced:copy');
  t.true(second.unchanged > 0);
  t.is(second.files + second.unchanged, FILES);
  t.is(await listed(), FILES);
  t.like(await sync(source, 'synced:copy'), { files: 0, bytes: 0, unchanged: FILES });

  // The same size and an old time: only the content tells.
  const changed = join(source, 'd1/f1');
  await writeFile(changed, (await readFile(changed, 'utf8')).replaceAll('file', 'FILE'));
  await utimes(changed, 1, 1);
  await rm(join(source, 'd2/f2'));
  t.like(await sync(source, 'synced:copy', '--delete', '--dry-run'), { files: 1, deleted: 1 });
  t.is(await listed(), FILES);
  t.like(await sync(source, 'synced:copy', '--delete'), { files: 1, deleted: 1 });
  t.is(await listed(), FILES - 1);
  t.regex(await cli.output('disk', 'cat', 'synced:copy/d1/f1'), /^FILE 1/u);

  const target = await place('sync-target');
  t.like(await sync('synced:copy', target), { files: FILES - 1 });
  await cli.output('disk', 'exec', 'synced', 'echo changed > copy/d3/f3');
  t.like(await sync('synced:copy', target), { files: 1, unchanged: FILES - 2 });
  t.is(await readFile(join(target, 'd3/f3'), 'utf8'), 'changed\n');
  t.like(await sync('synced:copy', target), { files: 0, unchanged: FILES - 1 });
  t.deepEqual(
    (await readdir(target, { recursive: true })).filter((name) => name.includes('.berth-')),
    [],
  );
});

test('edit saves what the editor has made, unless somebody was faster', async (t) => {
  const { cli, stack, place } = t.context;
  await cli.output('disk', 'create', 'edited');
  const blind = await cli.run(['disk', 'edit', 'edited:x']);
  t.regex(blind.stderr, /^berth: this needs a terminal: berth disk cp puts a file into place /u);
  const editor = join(stack.directory, 'editor');
  await writeFile(
    editor,
    '#!/bin/sh\n[ -z "$WAIT" ] || until [ -e "$WAIT" ]; do sleep 0.1; done\necho more >> "$1"\n',
  );
  await chmod(editor, 0o755);
  const words = [...cli.command, 'disk', 'edit', 'edited:notes/a b'];
  const temporary = await place('edit-temporary');
  const environment = { ...cli.environment, EDITOR: editor, TMPDIR: temporary };
  await using first = await Terminal.open(stack.directory, words, environment);
  await first.shows(/edited:notes\/a b is saved\n\n\[ended with 0\]/u);
  t.is(await cli.output('disk', 'cat', 'edited:notes/a b'), 'more\n');
  const go = join(stack.directory, 'go');
  await using second = await Terminal.open(stack.directory, words, { ...environment, WAIT: go });
  await waitFor('the editor', async () => (await readdir(temporary)).length > 0);
  await cli.output('disk', 'exec', 'edited', 'echo theirs > "notes/a b"');
  await writeFile(go, '');
  const [, kept = ''] = await second.shows(/changed the file meanwhile: your text is in (.+)\.\n/u);
  t.is(await readFile(kept, 'utf8').catch(() => kept), 'more\nmore\n');
});

test('a command line that is wrong is told what helps', async (t) => {
  const { cli } = t.context;
  for (const [line, code, sentence] of [
    ['nothing', 2, /^unknown command 'nothing': see berth --help\.$/u],
    ['disk nothing', 2, /^unknown command 'nothing': see berth disk --help\.$/u],
    ['disk get', 2, /^missing required argument 'disk': see berth disk get --help\.$/u],
    ['completion tcsh', 2, /'tcsh' is invalid .*: see berth completion --help\.$/u],
    ['sandbox wait box --for ever', 2, /'ever' is invalid.*: see berth sandbox wait --help\.$/u],
    ['disk create a:b', 1, /^the name has .*: use letters, digits, - and _\.$/u],
    ['sandbox create A_b', 1, /^the name has .*: use a to z, 0 to 9 and -\.$/u],
    ['sandbox create --memory 900G', 1, /^mem_size_mib must be <= \d+\.$/u],
    ['disk exec box --json -- ls', 2, /"--json stands after the name, .*"put options before /u],
    ['sandbox run box -i -- cat', 2, /^-i stands after the name, .*: put options before /u],
    ['sandbox run -t box -- vi', 2, /^this needs a terminal: leave out --tty\.$/u],
    [
      'key create ci --scope all',
      2,
      /It is one of read, disk, .*: see berth key create --help\.$/u,
    ],
    ['snapshot rm nothing', 1, /^there is no snapshot nothing: see berth snapshot ls\.$/u],
    ['image build x --username me', 2, /^--username and --password-file go together: give both/u],
    ['login --url http://x --key-stdin', 2, /^stdin has no API key: write --key-stdin <file\.$/u],
  ] as const) {
    const ran = await cli.run(line.split(' '));
    t.is(ran.code, code, line);
    t.regex(ran.stderr.replace(/^berth: /u, '').trimEnd(), sentence, line);
  }
});

test('Ctrl-C ends the command of disk exec', async (t) => {
  const { cli } = t.context;
  await cli.output('disk', 'create', 'ended');
  const [node, main] = cli.command;
  const line = 'while :; do date +%N > beat; sleep 0.1; done';
  const child = spawn(node, [main, 'disk', 'exec', 'ended', line], { env: cli.environment });
  const exited = once(child, 'exit');
  await waitFor('the command', async () =>
    (await cli.output('disk', 'ls', 'ended:')).includes('beat'),
  );
  child.kill('SIGINT');
  t.deepEqual(await exited, [null, 'SIGINT']); // For a shell that is exit code 130.
  const isStill = 'last=$(cat beat); sleep 1; [ "$last" = "$(cat beat)" ]';
  await waitFor('the command to end', async () => {
    return (await cli.run(['disk', 'exec', 'ended', isStill])).code === 0;
  });
});

test('a key is made with scopes and an end', async (t) => {
  const { cli } = t.context;
  await cli.output(
    'key',
    'create',
    'reader',
    '--scope',
    'read',
    '--scope',
    'disk',
    '--expires',
    '1h',
  );
  t.regex(await cli.output('key', 'ls'), /^reader .* read, disk .* \d{4}-\d\d-\d\dT/mu);
});

test('lists of commands begin in lower case, but for abbreviations', async (t) => {
  const help = await t.context.cli.output('--help');
  t.regex(help, /^ {2}key +API keys of the account$/mu);
  t.regex(help, /^ {2}disk +shared disks, /mu);
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
  t.is((await run(['profile', 'rm', 'other', '--dry-run'])).stdout, 'would forget profile other\n');
  t.regex((await run(['profile', 'ls'])).stdout, / other/u);
  t.is((await run(['profile', 'rm', 'other'])).code, 0);
  t.notRegex((await run(['profile', 'ls'])).stdout, / other/u);
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
    await cli.output('disk', 'exec', disk, 'mkdir dir; touch dir/one-file');
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
    await terminal.type(`berth disk cat ${disk.slice(0, -1)}`);
    await terminal.press('Tab');
    await terminal.shows(new RegExp(`cat ${disk}:`, 'u'));
    await terminal.type('di');
    await terminal.press('Tab');
    await terminal.shows(new RegExp(`cat ${disk}:dir/`, 'u'));
    await terminal.press('Tab');
    await terminal.shows(new RegExp(`cat ${disk}:dir/one-file`, 'u'));
    t.pass();
  });
}
