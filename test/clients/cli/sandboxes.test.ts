/* `berth sandbox …` against a real stack; terminals are real, with tmux at their other end. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cli } from '../../helpers/cli.ts';
import { freePorts } from '../../helpers/ports.ts';
import { containerSettings } from '../../helpers/sandboxes.ts';
import { stackTest } from '../../helpers/stack-test.ts';
import { Terminal } from '../../helpers/terminal.ts';
import { waitFor } from '../../helpers/wait.ts';

interface Shown {
  readonly sandbox_id: string;
  readonly name: string;
  readonly status: string;
}

const { serial: test } = stackTest(containerSettings(), async ({ stack, api }) => ({
  cli: await Cli.in(stack.directory, api),
}));

test('a sandbox is made, listed, paused, resumed, forked and deleted', async (t) => {
  const { cli } = t.context;
  const made = await cli.json<Shown>('sandbox', 'create', 'life', '--memory', '256M');
  t.is(made.status, 'running');
  t.regex(await cli.output('sandbox', 'ls'), /^NAME +STATUS +.*\n(?:.*\n)*life +running /u);
  t.is(await cli.output('sandbox', 'pause', 'life'), 'life is paused\n');
  t.is(await cli.output('sandbox', 'resume', made.sandbox_id, '--quiet'), `${made.sandbox_id}\n`);
  const copy = await cli.json<Shown>('sandbox', 'fork', 'life', 'copy');
  t.is(copy.name, 'copy');
  const refused = await cli.run(['sandbox', 'rm', 'life', 'nobody']);
  t.deepEqual(refused, {
    code: 1,
    stdout: '',
    stderr: 'berth: there is no sandbox nobody: see berth sandbox ls.\n',
  });
  t.regex(await cli.output('sandbox', 'rm', '--dry-run', 'copy'), /^would delete copy \(/u);
  t.is(await cli.output('sandbox', 'rm', 'copy', 'life'), 'copy is deleted\nlife is deleted\n');
  t.notRegex(await cli.output('sandbox', 'ls'), /life|copy/u);
});

test('the hook of copies is set by every command that makes or starts something', async (t) => {
  const { cli } = t.context;
  const hookOf = async (name: string): Promise<string | undefined> =>
    (await cli.json<{ copy_hook?: string }>('sandbox', 'get', name)).copy_hook;
  await cli.output('sandbox', 'create', 'hooked', '--memory', '256M', '--copy-hook', 'one');
  t.regex(await cli.output('sandbox', 'get', 'hooked'), /copy hook +one/u);
  await cli.output('sandbox', 'start', 'hooked', '--copy-hook', 'two');
  t.is(await hookOf('hooked'), 'two');
  await cli.output('sandbox', 'fork', 'hooked', 'other', '--copy-hook', 'three');
  t.is(await hookOf('other'), 'three');
  await cli.output('sandbox', 'snapshot', 'hooked', 'kept', '--copy-hook', '');
  await cli.output('sandbox', 'create', 'plain', '--snapshot', 'kept');
  t.is(await hookOf('plain'), undefined);
  await cli.output('sandbox', 'rm', 'other', 'plain');
  await cli.output('snapshot', 'rm', 'kept');
  await cli.output('sandbox', 'rm', 'hooked');
});

test('run passes words, input, output and the exit code, whatever is in them', async (t) => {
  const { cli } = t.context;
  await cli.output('sandbox', 'create', 'runs', '--memory', '256');
  const odd = ['a b', "it's", '-rf', 'x\ny', '$HOME', ''];
  const words = await cli.output('sandbox', 'run', 'runs', '--', 'printf', '<%s>', ...odd);
  t.is(words, odd.map((word) => `<${word}>`).join(''));
  const both = await cli.run(['sandbox', 'run', 'runs', 'echo out; echo err >&2; exit 7']);
  t.deepEqual(both, { code: 7, stdout: 'out\n', stderr: 'err\n' });
  const input = 'x'.repeat(3_000_000);
  const echoed = await cli.run(['sandbox', 'run', '-i', 'runs', '--', 'wc', '-c'], { input });
  t.is(echoed.stdout.trim(), String(input.length));
  const timed = await cli.run(['sandbox', 'run', '--timeout', '1s', 'runs', 'sleep 60']);
  const late = 'berth: the command did not end by itself: timed out.\n';
  t.deepEqual(timed, { code: 124, stdout: '', stderr: late });
  const unknown = await cli.run(['sandbox', 'run', 'nobody', '--', 'true']);
  t.is(unknown.code, 125);
  const wrong = await cli.run(['sandbox', 'run', '--memory', 'much', '--', 'true']);
  t.is(wrong.code, 2);
  t.regex(wrong.stderr, /^berth: option '--memory <size>' .*see berth sandbox run --help\.\n$/u);
});

test('what keeps run and shell from a sandbox is said in one sentence, with the next step', async (t) => {
  const { cli, stack, api } = t.context;
  const { sandbox_id: id } = await cli.json<Shown>('sandbox', 'create', 'rests', '--memory', '256');
  const says = async (sentence: string, env: Record<string, string> = {}): Promise<void> => {
    const ran = await cli.run(['sandbox', 'run', 'rests', '--', 'true'], { env });
    t.deepEqual(ran, { code: 125, stdout: '', stderr: `berth: ${sentence}\n` });
    const words = [...cli.command, 'sandbox', 'shell', 'rests'];
    await using terminal = await Terminal.open(
      stack.directory,
      words,
      { ...cli.environment, ...env },
      { cols: 200, rows: 10 },
    );
    await terminal.shows(/\[ended with 125\]/u);
    t.true((await terminal.screen()).startsWith(`berth: ${sentence}\n`));
  };
  await cli.output('sandbox', 'pause', 'rests');
  await says('the sandbox is paused: berth sandbox resume lets it go on where it was.');
  const byId = await cli.run(['sandbox', 'run', id, '--', 'true', '--json']);
  t.regex(byId.stderr, /^berth: the sandbox is paused: berth sandbox resume /u);
  const read = await cli.run(['sandbox', 'cp', 'rests:/etc/hostname', '-', '--json']);
  t.deepEqual(JSON.parse(read.stderr), {
    error: {
      code: 'sandbox_not_running',
      message: 'the sandbox is paused',
      next: 'berth sandbox resume lets it go on where it was',
    },
  });
  await cli.output('sandbox', 'stop', 'rests');
  await says('the sandbox is stopped: berth sandbox start boots it.');
  await says('there is no sandbox rests: see berth sandbox ls.', {
    BERTH_API_KEY: (await stack.newClient()).key,
  });
  const revoked = await api.data<{ token: string; id: string }>('POST', '/api/tokens', {
    name: 'revoked',
  });
  await cli.output('key', 'rm', 'revoked');
  await says('the API key is not valid: berth login sets another one.', {
    BERTH_API_KEY: revoked.token,
  });
  const [port = 0] = await freePorts(1);
  await says('no answer came from the server: berth doctor says what can be reached.', {
    BERTH_URL: `http://127.0.0.1:${port}`,
  });
  await says(
    'what answered is not Berth (HTTP status 404): see whether the URL of berth profile show is right.',
    { BERTH_URL: stack.environment['AGENT_PUBLIC_URL'] ?? '' },
  );
  await cli.output('sandbox', 'start', 'rests');
  const nowhere = await cli.run(['sandbox', 'run', '-w', '/nowhere', 'rests', '--', 'pwd']);
  t.deepEqual(nowhere, {
    code: 125,
    stdout: '',
    stderr: 'berth: the process could not be started: the directory to run it in is not there.\n',
  });
});

test('a shell whose sandbox is stopped says so', async (t) => {
  const { cli, stack } = t.context;
  await cli.output('sandbox', 'create', 'stops', '--memory', '256');
  const words = [...cli.command, 'sandbox', 'shell', 'stops'];
  await using terminal = await Terminal.open(stack.directory, words, cli.environment);
  await terminal.shows(/[#$] $/mu);
  await cli.output('sandbox', 'stop', 'stops');
  await terminal.shows(/^berth: the command did not end by itself: sandbox stopped\.$/mu);
  const [ended] = await terminal.shows(/\[ended with \d+\]/u);
  t.is(ended, '[ended with 137]');
});

test('run without a sandbox makes one for the command', async (t) => {
  const { cli } = t.context;
  const ran = await cli.run(['sandbox', 'run', '--memory', '256', '-e', 'STAGE=test', '--', 'env']);
  t.is(ran.code, 0, ran.stderr);
  t.regex(ran.stdout, /^STAGE=test$/mu);
});

test('Ctrl-C while a sandbox is made for a command leaves none', async (t) => {
  const { cli, api } = t.context;
  const [node, main] = cli.command;
  const ids = async (): Promise<string[]> => {
    const listed = await api.data<{ sandboxes: Shown[] }>('GET', '/api/sandboxes');
    return listed.sandboxes.map(({ sandbox_id: id }) => id);
  };
  const before = await ids();
  const args = [main, 'sandbox', 'run', '--memory', '256', '--', 'sleep', '60'];
  const child = spawn(node, args, { env: cli.environment });
  const exited = once(child, 'exit');
  await waitFor('the sandbox', async () => (await ids()).length > before.length);
  child.kill('SIGINT');
  t.deepEqual(await exited, [130, null]);
  t.deepEqual(await ids(), before);
});

test('cp brings files into a sandbox and back, whatever their names are', async (t) => {
  const { cli, stack } = t.context;
  await cli.output('sandbox', 'create', 'files', '--memory', '256');
  const source = join(stack.directory, 'cp-source');
  await mkdir(join(source, 'deep'), { recursive: true });
  const names = ['a b', '-rf', 'line\nbreak', 'deep/ünïcode'];
  for (const name of names) await writeFile(join(source, name), `in ${name}`);
  await chmod(join(source, 'a b'), 0o751);
  await cli.output('sandbox', 'cp', source, 'files:/work/');
  const modes = await cli.output('sandbox', 'run', 'files', 'stat -c %a "/work/cp-source/a b"');
  t.is(modes, '751\n');
  const target = join(stack.directory, 'cp-target');
  await cli.output('sandbox', 'cp', 'files:/work/cp-source', target);
  for (const name of names) t.is(await readFile(join(target, name), 'utf8'), `in ${name}`);
  t.is((await stat(join(target, 'a b'))).mode & 0o777, 0o751);
  t.is((await cli.run(['sandbox', 'cp', '-', 'files:/tmp/in'], { input: 'piped' })).code, 0);
  t.is(await cli.output('sandbox', 'cp', 'files:/tmp/in', '-'), 'piped');
  const missing = await cli.run(['sandbox', 'cp', 'files:/nothing', '.']);
  t.is(missing.stderr, 'berth: there is nothing at files:/nothing: look at the name again.\n');
});

test('cp from a sandbox brings names that are not UTF-8, each as it is', async (t) => {
  const { cli, stack } = t.context;
  await cli.output('sandbox', 'create', 'bytes', '--memory', '256');
  const line = String.raw`d=$(printf '/box/\377'); mkdir -p "$d" && cd "$d" &&
    echo fe >"$(printf '\376')" && echo fd >"$(printf '\375')"`;
  await cli.output('sandbox', 'run', 'bytes', line);
  const target = join(stack.directory, 'bytes');
  await cli.output('sandbox', 'cp', 'bytes:/box', target);
  const directory = Buffer.concat([Buffer.from(`${target}/`), Buffer.of(0xff)]);
  const names = await readdir(directory, { encoding: 'buffer' });
  t.deepEqual(names.map((name) => name.toString('hex')).toSorted(), ['fd', 'fe']);
  for (const name of names) {
    const path = Buffer.concat([directory, Buffer.from('/'), name]);
    t.is(await readFile(path, 'utf8'), `${name.toString('hex')}\n`);
  }
});

test('a command goes on without us, and its output is there later', async (t) => {
  const { cli } = t.context;
  await cli.output('sandbox', 'create', 'detached', '--memory', '256');
  const line = 'for i in 1 2 3; do echo line $i; sleep 0.3; done; exit 4';
  const begun = await cli.output('sandbox', 'run', '-d', '-q', 'detached', line);
  const log = await cli.run(['sandbox', 'logs', 'detached', begun.trim(), '--follow']);
  t.deepEqual(log, { code: 4, stdout: 'line 1\nline 2\nline 3\n', stderr: '' });
  t.regex(await cli.output('sandbox', 'logs', 'detached'), /completed \(4\)/u);
  t.is((await cli.run(['sandbox', 'logs', '--json', 'detached', begun.trim()])).code, 4);
  const late = await cli.output(
    ...['sandbox', 'run', '-d', '-q', '--timeout', '1s', 'detached', 'sleep 60'],
  );
  t.is((await cli.run(['sandbox', 'logs', 'detached', late.trim(), '--follow'])).code, 124);
  t.is((await cli.run(['sandbox', 'logs', 'nobody', late.trim()])).code, 125);
});

test('a shell takes keys, sizes and the end of input as a local one does', async (t) => {
  const { cli, stack } = t.context;
  await cli.output('sandbox', 'create', 'shell', '--memory', '256');
  const words = [...cli.command, 'sandbox', 'shell', 'shell'];
  await using terminal = await Terminal.open(stack.directory, words, cli.environment);
  await terminal.shows(/[#$] $/mu);
  await terminal.enter('echo size $(stty size)');
  await terminal.shows(/^size 24 80$/mu);
  await terminal.resize(100, 30);
  await waitFor('the new size', async () => {
    await terminal.enter('stty size');
    await sleep(200);
    return /^30 100$/mu.test(await terminal.screen());
  });
  await terminal.enter('sleep 1000');
  await sleep(500);
  await terminal.press('C-c');
  await terminal.enter('echo interrupted $?');
  await terminal.shows(/^interrupted 130$/mu);
  await terminal.enter('cat');
  await terminal.enter('typed');
  await terminal.press('C-z');
  await terminal.shows(/Stopped/u);
  await terminal.enter('kill -9 %1; sleep 0.3; (exit 3)');
  await terminal.shows(/Killed/u);
  await terminal.press('C-d');
  const [ended] = await terminal.shows(/\[ended with \d+\]/u);
  t.is(ended, '[ended with 3]');
});

test('a shell is left with ~. and found again, and outlives its agent', async (t) => {
  const { cli, stack } = t.context;
  await cli.output('sandbox', 'create', 'left', '--memory', '256');
  const words = [...cli.command, 'sandbox', 'shell', 'left'];
  await using first = await Terminal.open(stack.directory, words, cli.environment);
  await first.shows(/[#$] $/mu);
  await first.enter('echo marker-$((40 + 2))');
  await first.shows(/^marker-42$/mu);
  await first.enter('~.');
  const [, id = ''] = await first.shows(/--attach (\S+)/u);
  await first.shows(/\[ended with 0\]/u);
  const again = [...words, '--attach', id];
  await using second = await Terminal.open(stack.directory, again, cli.environment);
  await second.shows(/^marker-42$/mu);
  await second.enter('for i in $(seq 1 400); do echo n$i; sleep 0.01; done; echo all');
  await second.shows(/^n20$/mu);
  await stack.agent.stop('SIGKILL');
  await sleep(300);
  await stack.startAgent();
  await second.shows(/^all$/mu);
  const numbers = [...(await second.screen()).matchAll(/^n(\d+)$/gmu)].map(([, n]) => Number(n));
  t.deepEqual(
    numbers,
    Array.from({ length: 400 }, (_, i) => i + 1),
  );
  await second.enter('exit');
  await second.shows(/\[ended with 0\]/u);
});
