/*
 * Programs that fill the screen, cut networks and pauses, in `berth sandbox shell` in a real
 * terminal. At full length in a virtual machine, else in a container.
 */
import { execFile } from 'node:child_process';
import { realpath } from 'node:fs/promises';
import { promisify } from 'node:util';
import anyTest, { type TestFn } from 'ava';
import type { ApiClient } from '../../helpers/api.ts';
import { Cli } from '../../helpers/cli.ts';
import { CuttableProxy } from '../../helpers/cuttable-proxy.ts';
import { isFull } from '../../helpers/full.ts';
import { freePorts } from '../../helpers/ports.ts';
import { containerSettings, createSandbox, sandboxSettings } from '../../helpers/sandboxes.ts';
import { Stack } from '../../helpers/stack.ts';
import { Terminal } from '../../helpers/terminal.ts';
import { waitFor } from '../../helpers/wait.ts';
import { MiB } from '../../../shared/units.ts';

/** A shell that waits for a command. */
const PROMPT = /[#$] $/mu;

interface Context {
  stack: Stack;
  api: ApiClient;
  cli: Cli;
  /** Between the command line and the agent. */
  proxy: CuttableProxy;
}

const { serial: test } = anyTest as TestFn<Context>;

test.before(async (t) => {
  const [port = 0] = await freePorts(1);
  const proxy = await CuttableProxy.to(port);
  Object.assign(t.context, { proxy });
  const stack = await Stack.start({
    ...(isFull ? sandboxSettings() : containerSettings()),
    AGENT_PORT: String(port),
    AGENT_PUBLIC_URL: `http://127.0.0.1:${proxy.port}`,
  });
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  await createSandbox(api, { name: 'box' });
  Object.assign(t.context, { api, cli: await Cli.in(stack.directory, api) });
});

test.after.always(async (t) => {
  await t.context.stack?.stop();
  await t.context.proxy?.[Symbol.asyncDispose]();
});

async function openShell({ stack, cli }: Context): Promise<Terminal> {
  const words = [...cli.command, 'sandbox', 'shell', 'box'];
  const terminal = await Terminal.open(stack.directory, words, cli.environment);
  await terminal.shows(PROMPT);
  return terminal;
}

/**
 * Brings a program of this computer and its libraries into the sandbox, as a package would, under
 * another name.
 */
async function install(cli: Cli, program: string, name: string): Promise<void> {
  const path = await realpath(program);
  const { stdout: libraries } = await promisify(execFile)('ldd', [path]);
  const files = [path, ...(libraries.match(/\/\S+\.so\S*/gu) ?? [])];
  const { stdout: input } = await promisify(execFile)('tar', ['-chP', ...files], {
    encoding: 'buffer',
    maxBuffer: 64 * MiB,
  });
  const unpack = `tar -xP --skip-old-files && ln -s ${path} /usr/local/bin/${name}`;
  const { code, stderr } = await cli.run(['sandbox', 'run', '-i', 'box', unpack], { input });
  if (code !== 0) throw new Error(stderr);
}

test('vim edits a file in a shell, and follows the size of the terminal', async (t) => {
  const { cli } = t.context;
  await install(cli, '/usr/bin/vim', 'editor');
  await using terminal = await openShell(t.context);
  await terminal.enter('editor -u NONE /tmp/edited');
  await terminal.shows(/^~ *\n[^]*"\/tmp\/edited"/mu);
  await terminal.type('ifirst line');
  await terminal.press('Enter');
  await terminal.type('second line');
  await terminal.press('Escape');
  await terminal.resize(100, 40);
  // Lines that the terminal has now, less the text and the line of status.
  await waitFor('vim to fill the screen', async () => {
    const empty = (await terminal.screen()).match(/^~ *$/gmu)?.length ?? 0;
    return empty === 40 - 2 - 1;
  });
  await terminal.enter(':wq');
  await terminal.shows(PROMPT); // vim may swallow input that is typed earlier.
  await terminal.enter('echo left-$((1 + 1))');
  await terminal.shows(/^left-2$/mu);
  t.is(await cli.output('sandbox', 'run', 'box', 'cat /tmp/edited'), 'first line\nsecond line\n');
});

test('top draws its screen anew until q', async (t) => {
  await using terminal = await openShell(t.context);
  await terminal.enter('top -d 0.3');
  const [, first = ''] = await terminal.shows(/^top - (\d+:\d+:\d+)/mu);
  await terminal.shows(/^ +PID USER/mu);
  await waitFor('another picture', async () => {
    const [, now = first] = /^top - (\d+:\d+:\d+)/mu.exec(await terminal.screen()) ?? [];
    return now !== first;
  });
  await terminal.press('q');
  await terminal.shows(PROMPT);
  await terminal.enter('echo left-$((1 + 2))');
  await terminal.shows(/^left-3$/mu);
  t.pass();
});

test('htop shows processes, takes keys, follows the size of the terminal, and leaves the screen as it was', async (t) => {
  await install(t.context.cli, '/usr/bin/htop', 'processes');
  await using terminal = await openShell(t.context);
  await terminal.enter('echo before-$((1 + 3)); processes --delay=2');
  await terminal.shows(/Tasks: \d+/u);
  await terminal.shows(/^F1Help +F2Setup/mu);
  await terminal.press('F5');
  await terminal.shows(/F5List/u); // The tree of processes.
  await terminal.resize(110, 36);
  // Its line of keys is the last one, wherever that is.
  await waitFor('htop to fill the screen', async () => {
    const lines = (await terminal.screen()).trimEnd().split('\n');
    return lines.length >= 36 && lines.at(-1)?.startsWith('F1Help') === true;
  });
  await terminal.press('F10');
  await terminal.shows(/^before-4$[^]*[#$] $/mu);
  await terminal.enter('echo left-$((1 + 3))');
  await terminal.shows(/^left-4$/mu);
  t.notRegex(await terminal.screen(), /F1Help/u);
});

/** The numbered lines of a shell, in order of appearance. */
// Not from the beginning of a line: the terminal may echo in pieces what was typed meanwhile.
const numbersIn = (screen: string): number[] =>
  [...screen.matchAll(/n(\d+)$/gmu)].map(([, n]) => Number(n));
const ALL_NUMBERS = Array.from({ length: 300 }, (_, i) => i + 1);
const COUNT = 'for i in $(seq 1 300); do echo n$i; sleep 0.02; done; echo al""l';

test('a shell whose sandbox is paused and resumed loses and repeats nothing, in both directions', async (t) => {
  const { cli } = t.context;
  await using terminal = await openShell(t.context);
  await terminal.enter(COUNT);
  for (const seen of ['n20', 'n120']) {
    await terminal.shows(new RegExp(`^${seen}$`, 'mu'));
    t.is(await cli.output('sandbox', 'pause', 'box'), 'box is paused\n');
    // Typed while nothing runs that could take it.
    await terminal.enter(`echo typed-${seen}-$((1 + 1))`);
    t.is(await cli.output('sandbox', 'resume', 'box'), 'box is running\n');
  }
  await terminal.shows(/^typed-n120-2$/mu);
  const screen = await terminal.screen();
  t.deepEqual(numbersIn(screen), ALL_NUMBERS);
  t.is(screen.match(/^typed-n20-2$/gmu)?.length, 1);
  t.is(screen.match(/^typed-n120-2$/gmu)?.length, 1);
  await terminal.resize(90, 30);
  await waitFor('the new size', async () => {
    await terminal.enter('stty size');
    return /^30 90$/mu.test(await terminal.screen());
  });
});

test('a shell whose network is cut loses and repeats nothing, in both directions', async (t) => {
  const { proxy } = t.context;
  await using terminal = await openShell(t.context);
  await terminal.enter(COUNT);
  for (const seen of ['n20', 'n120']) {
    await terminal.shows(new RegExp(`^${seen}$`, 'mu'));
    const { cuts } = proxy;
    proxy.cut();
    t.true(proxy.cuts > cuts);
    // Typed while nothing comes through.
    await terminal.enter(`echo typed-${seen}-$((1 + 1))`);
    proxy.mend();
  }
  await terminal.shows(/^typed-n120-2$/mu);
  const screen = await terminal.screen();
  t.deepEqual(numbersIn(screen), ALL_NUMBERS);
  t.is(screen.match(/^typed-n20-2$/gmu)?.length, 1);
  t.is(screen.match(/^typed-n120-2$/gmu)?.length, 1);
});
