/* Terminals of the console: Chromium, and the real programs of a sandbox. */
import { execFile } from 'node:child_process';
import { realpath } from 'node:fs/promises';
import { promisify } from 'node:util';
import { MiB } from '../../shared/units.ts';
import { Berth } from '../../clients/sdk/src/index.ts';
import { checkNoProblems, type ConsoleContext, consoleTest } from '../helpers/console-test.ts';
import type { ConsolePage } from '../helpers/console-page.ts';
import { Files } from '../helpers/sandbox-files.ts';
import { bring, createSandbox, outputOf } from '../helpers/sandboxes.ts';

const execute = promisify(execFile);
const test = consoleTest();
/** The rows of the terminal that is shown, without the spaces at their ends. */
const ROWS = `[...document.querySelectorAll('[role=tabpanel]:not([hidden]) .xterm-rows > div')]
  .map((row) => row.textContent.replaceAll('\\u00a0', ' '))`;
/**
 * How many numbers are written while the connection, the agent and the page go. They fit on a
 * screen.
 */
const NUMBERS = 250;

/** Waits until the terminal shows what matches. */
async function shows(page: ConsolePage, wanted: RegExp): Promise<string> {
  const text = `${ROWS}.map((row) => row.trimEnd()).join('\\n')`;
  try {
    return await page.until(`the terminal to show ${wanted}`, `${wanted}.test(${text}) && ${text}`);
  } catch (error) {
    const shown = (await page.page.evaluate(text)) as string;
    throw new Error(`${String(error)}; it shows:\n${shown}`, { cause: error });
  }
}

/** Types into the terminal that is shown, once it has the focus. */
async function type(page: ConsolePage, text: string): Promise<void> {
  const shown = `document.querySelector('[role=tabpanel]:not([hidden])')`;
  await page.until('the focus', `${shown}?.contains(document.activeElement) === true`);
  await page.type(text);
}

/** Opens the terminal of a new sandbox, and waits until its shell takes commands. */
async function openTerminal({ page, api }: ConsoleContext, name: string): Promise<string> {
  const { sandbox_id: id } = await createSandbox(api, { name });
  await page.goTo(`/sandboxes/${id}/terminal`);
  await shows(page, /[#$]/u);
  return id;
}

/**
 * Brings a program of this computer and its libraries into a sandbox, as a package would, under
 * another name.
 */
async function install(
  { stack, api }: ConsoleContext,
  id: string,
  program: string,
  name: string,
): Promise<void> {
  const path = await realpath(program);
  const { stdout: libraries } = await execute('ldd', [path]);
  const files = [path, ...(libraries.match(/\/\S+\.so\S*/gu) ?? [])];
  const { stdout: archive } = await execute('tar', ['-chP', ...files], {
    encoding: 'buffer',
    maxBuffer: 64 * MiB,
  });
  await new Files(stack, api, id).put('/tmp/program.tar', archive);
  const unpack = 'tar -xP --skip-old-files -f /tmp/program.tar';
  await outputOf(api, id, `${unpack} && ln -s ${path} /usr/local/bin/${name}`);
}

test.serial('vim edits a file, also when the page is loaded again in the middle', async (t) => {
  const { page, api } = t.context;
  const id = await openTerminal(t.context, 'edits');
  await install(t.context, id, '/usr/bin/vim', 'editor');
  await type(page, 'LANG=C.UTF-8 editor -u NONE /tmp/a.txt\n');
  await shows(page, /^~\n~[^]*"\/tmp\/a\.txt"/mu);
  await type(page, 'ifirst lïne → 1\nsecond');
  await shows(page, /^first lïne → 1\nsecond/mu);
  await page.key('Escape');
  await type(page, ':w\n');
  await shows(page, /"\/tmp\/a\.txt"[^\n]* 2 lines, \d+ bytes written/u);
  await page.goTo(`/sandboxes/${id}/terminal`);
  await shows(page, /^first lïne → 1\nsecond/mu);
  await type(page, 'A line');
  await shows(page, /^second line/mu);
  await page.key('Escape');
  await type(page, 'yyp:wq\n');
  await shows(page, /^.*editor -u NONE \/tmp\/a\.txt\n.*[#$]$/mu);
  t.is(await outputOf(api, id, 'cat /tmp/a.txt'), 'first lïne → 1\nsecond line\nsecond line\n');
  checkNoProblems(t);
});

test.serial('a program learns how large the terminal is', async (t) => {
  const { page } = t.context;
  await openTerminal(t.context, 'sized');
  const columns = async (when: string): Promise<number> => {
    await type(page, `clear; echo "${when}: $(tput cols) columns"\n`);
    const shown = await shows(page, new RegExp(`^${when}: \\d+ columns`, 'mu'));
    return Number(/: (\d+) columns/u.exec(shown)?.[1]);
  };
  const before = await columns('before');
  const narrow = { width: 420, height: 600, deviceScaleFactor: 1, mobile: false };
  await page.page.send('Emulation.setDeviceMetricsOverride', narrow);
  await type(page, 'until [ "$(tput cols)" -lt 80 ]; do sleep 0.1; done; echo ok"ay"\n');
  await shows(page, /okay/u);
  const after = await columns('after');
  t.true(after < before, `${before}, ${after}`);
  const wide = { width: 1280, height: 800, deviceScaleFactor: 1, mobile: false };
  await page.page.send('Emulation.setDeviceMetricsOverride', wide);
  checkNoProblems(t);
});

test.serial('each tab has a shell of its own, and is there again after a reload', async (t) => {
  const { page } = t.context;
  const id = await openTerminal(t.context, 'tabs');
  await type(page, 'mine=first; echo "$mine"-tab\n');
  await shows(page, /^first-tab/mu);
  await page.press('Open another terminal');
  await shows(page, /[#$]/u);
  await type(page, 'echo "[$mine]"; mine=second\n');
  await shows(page, /^\[\]/mu);
  await page.goTo(`/sandboxes/${id}/terminal`);
  await shows(page, /^first-tab/mu);
  await type(page, 'echo still "$mine"\n');
  await shows(page, /^still first/mu);
  await page.until('both tabs', `document.querySelectorAll('[role=tab]').length === 2`);
  await page.page.evaluate(`document.querySelectorAll('[role=tab]')[1].click()`);
  await type(page, 'echo still "$mine"\n');
  await shows(page, /^still second/mu);
  await type(page, 'exit 7\n');
  await page.shows('The process has ended with exit code 7');
  await page.press('End this terminal and its process');
  await page.until('one tab', `document.querySelectorAll('[role=tab]').length === 1`);
  t.deepEqual(await page.violations(), []);
  checkNoProblems(t);
});

test.serial('a word is found above what is seen, copied and pasted', async (t) => {
  const { page } = t.context;
  await openTerminal(t.context, 'found');
  await page.page.send('Browser.grantPermissions', {
    permissions: ['clipboardReadWrite', 'clipboardSanitizedWrite'],
  });
  await type(page, 'clear; echo nee"dle"-1; seq 300; echo nee"dle"-2; seq 300; echo e"nd"\n');
  await shows(page, /^end/mu);
  await page.fill('Search in the terminal', 'needle-');
  const find = `fieldOf('Search in the terminal').focus()`;
  await page.page.evaluate(find);
  await page.key('Enter'); // Upwards, from what came last.
  await shows(page, /^needle-2/mu);
  await page.key('Enter');
  await shows(page, /^needle-1/mu);
  await page.key('Enter', 'Shift');
  await shows(page, /^needle-2/mu);
  await page.press('Copy');
  await page.shows('Copied.');
  t.is(await page.page.evaluate('navigator.clipboard.readText()'), 'needle-');
  await page.page.evaluate(`navigator.clipboard.writeText('echo pa"sted"-"here"')`);
  await page.press('Paste');
  await type(page, '\n');
  await shows(page, /^pasted-here/mu);
  checkNoProblems(t);
});

test.serial('a terminal goes on where it was when its sandbox has been paused', async (t) => {
  const { page, api } = t.context;
  const id = await openTerminal(t.context, 'rested');
  const numbers = `for n in $(seq ${NUMBERS}); do printf '%s,' "$n"; sleep 0.03; done; echo end`;
  await type(page, `clear; ${numbers}\n`);
  await shows(page, /40,41,/u);
  await page.press('Pause', { role: 'button' });
  await page.shows('The sandbox is paused. Terminals continue as soon as it runs.');
  await page.press('Resume', { role: 'button' });
  await shows(page, /,120,/u);
  await bring(api, id, 'pause', 'paused');
  await page.goTo(`/sandboxes/${id}/terminal`);
  await page.shows('The sandbox is paused. Terminals continue as soon as it runs.');
  await bring(api, id, 'resume', 'running');
  await shows(page, /250,end/u);
  const shown = (await page.page.evaluate(`${ROWS}.join('')`)) as string;
  const all = Array.from({ length: NUMBERS }, (_, n) => String(n + 1));
  t.is(shown.slice(shown.lastIndexOf('1,2,3,4,'), shown.lastIndexOf(',end')), all.join());
  await page.until('the focus', `document.activeElement?.closest('[role=tabpanel]') !== null`);
  page.page.problems.length = 0; // Messages about a connection that ends.
});

test.serial(
  'no byte is lost or doubled when the connection, the page and the agent go',
  async (t) => {
    const { page, stack, toAgent } = t.context;
    const id = await openTerminal(t.context, 'lossless');
    const numbers = `for n in $(seq ${NUMBERS}); do printf '%s,' "$n"; sleep 0.03; done; echo end`;
    await type(page, `clear; ${numbers}\n`);
    await shows(page, /40,41,/u);
    toAgent.cut();
    toAgent.mend();
    await shows(page, /,90,/u);
    await page.goTo(`/sandboxes/${id}/terminal`);
    await shows(page, /\b150,/u);
    await stack.agent.stop('SIGKILL');
    await stack.startAgent();
    await shows(page, /250,end/u);
    const shown = (await page.page.evaluate(`${ROWS}.join('')`)) as string;
    const all = Array.from({ length: NUMBERS }, (_, n) => String(n + 1));
    t.is(shown.slice(shown.lastIndexOf('1,2,3,4,'), shown.lastIndexOf(',end')), all.join());
    await type(page, 'echo alive\n');
    await shows(page, /^alive/mu);
    t.true(toAgent.cuts > 0);
    page.page.problems.length = 0; // Messages about the cut and the dead agent.
  },
);

test.serial('processes are listed, ended, and opened again in another browser', async (t) => {
  const { page, api, stack } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { name: 'has-processes' });
  const berth = new Berth({ baseUrl: stack.baseUrl, apiKey: api.key });
  const sandbox = await berth.sandboxes.get(id);
  const markup = `sleep 1000 # <img src=x onerror="document.title='hacked'">`;
  const piped = await sandbox.start(markup);
  const shell = await sandbox.start('printf "sti""ll here"; exec sh', { terminal: true });
  await page.goTo(`/sandboxes/${id}/commands`);
  const table = 'table[aria-label="Processes of terminals and sessions"]';
  await page.reads(table, /sleep 1000 # <img src=x onerror=/u);
  t.deepEqual(await page.violations(), []);
  const { pid } = (await sandbox.processes()).find((each) => each.process_id === piped.id) ?? {};
  await page.press(`End process ${pid}`);
  t.is((await piped.exit).status, 'cancelled');
  await page.reads(table, /cancelled/u);
  const { pid: shellPid } =
    (await sandbox.processes()).find((each) => each.process_id === shell.id) ?? {};
  shell.detach();
  await page.press(`Open process ${shellPid} in a terminal`);
  await shows(page, /still here/u);
  checkNoProblems(t);
});
