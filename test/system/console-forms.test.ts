/*
 * Forms of the console in Chromium on a real stack, by pointer, and a whole day by keyboard alone.
 */
import { readFile } from 'node:fs/promises';
import { isDeepStrictEqual } from 'node:util';
import { chooseBy, focusOf, tabTo } from '../helpers/console-keyboard.ts';
import { checkNoProblems, type ConsoleContext, consoleTest } from '../helpers/console-test.ts';
import { createDisk } from '../helpers/disks.ts';
import { Outside } from '../helpers/outside.ts';
import { imageOf, layerOf, TestRegistry } from '../helpers/registry.ts';
import {
  type ApiSandbox,
  bring,
  createSandbox,
  findSandbox,
  getSandbox,
  outputOf,
  removeSandbox,
} from '../helpers/sandboxes.ts';
import { waitFor } from '../helpers/wait.ts';

const LOGIN = { username: 'builder', password: 'a-password-of-some-length' };
let registry: TestRegistry | undefined;
let outside: Outside | undefined;
const test = consoleTest(async (directory) => {
  registry = await TestRegistry.start(directory, 'closed', LOGIN);
  outside = await Outside.open({ 'good.test': 1, 'bad.test': 2 });
  await outside.serve('http', 80);
  return { ...outside.settings, IMAGE_REGISTRIES: registry.url };
});
test.after.always(async () => {
  await registry?.stop();
  await outside?.[Symbol.asyncDispose]();
});

/** A command that writes the status of a request. */
const ask = (name: string): string => `curl -s -o /dev/null -w '%{http_code} ' http://${name}/`;

/** Removes a sandbox whose page is shown. */
async function leave({ page, api }: ConsoleContext, id: string): Promise<void> {
  await page.goTo('/usage');
  await removeSandbox(api, id);
}

const status = "document.querySelector('h1 .status')?.textContent";

test.serial('an image is built with a password, and a sandbox made from it', async (t) => {
  const { page, api } = t.context;
  const busybox = layerOf([
    { name: 'bin/', type: 'directory' },
    { name: 'bin/busybox', mode: 0o755, content: await readFile('/bin/busybox') },
    { name: 'bin/sh', type: 'link', target: 'bin/busybox' },
    { name: 'marker', content: 'of the image' },
  ]);
  const source = (await registry?.push('own/tool', 'v1', imageOf([busybox]))) ?? '';
  await page.goTo('/images');
  await page.fill('Image', source);
  await page.press('Build');
  await page.reads('table', /failed/u);
  await page.fill('Registry user, if private', LOGIN.username);
  await page.fill('Password', LOGIN.password);
  await page.press('Build');
  await page.reads('table', /own\/tool:v1[^]*private[^]*ready[^]*sha256:/u);
  t.deepEqual(await page.violations(), []);
  await page.press('Create sandbox');
  await page.until('it to run', `${status} === 'running'`);
  const id = String(await page.page.evaluate("location.pathname.split('/').at(-1)"));
  t.is(await outputOf(api, id, 'read -r text </marker; echo "$text"'), 'of the image\n');
  await leave(t.context, id);
  checkNoProblems(t);
});

test.serial('a sandbox is made with two disks, ports, a policy and a time to rest', async (t) => {
  const { page, api } = t.context;
  const one = await createDisk(api, { name: 'one' });
  const two = await createDisk(api, { name: 'two' });
  await page.goTo('/sandboxes');
  await page.press('Create sandbox');
  await page.fill('Name', 'full');
  await page.fill('Memory', '256');
  await page.press('Add a disk');
  await page.fill('Disk', one.id);
  await page.press('Add a disk');
  const second = "scope().querySelectorAll('.mount')[1]";
  await page.page.evaluate(`{
    const [disk] = ${second}.querySelectorAll('select');
    disk.value = '${two.id}';
    disk.dispatchEvent(new Event('change', { bubbles: true }));
    ${second}.querySelector('[type=checkbox]').click();
  }`);
  await page.fill('Network', 'deny');
  await page.fill('Allowed', 'api.example.com');
  await page.fill('Ports', '8080, 3000');
  await page.fill('Pause after idle minutes', '5');
  await page.press('Create sandbox');
  await page.until('it to run', `${status} === 'running'`);
  const made = (await findSandbox(api, 'full')) as ApiSandbox & { mounts: object[] };
  const id = made.sandbox_id;
  t.like(made, { idle_ttl_seconds: 300 });
  t.deepEqual(made.network, { egress: { default: 'deny', allow: ['api.example.com'] } });
  t.like(made.mounts, [
    { disk_id: one.id, path: '/mnt/disk' },
    { disk_id: two.id, path: '/mnt/disk-2', read_only: true },
  ]);
  await page.goTo(`/sandboxes/${id}/ports`);
  await page.reads('table', /3000[^]*8080|8080[^]*3000/u);
  await page.goTo(`/sandboxes/${id}`);
  await page.reads('.columns + .columns', /\/mnt\/disk-2\s+dsk-\w+ \(read-only\)/u);
  await leave(t.context, id);
  checkNoProblems(t);
});

test.serial('a port is made public and closed, and a token for one is shown once', async (t) => {
  const { page, api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { name: 'with-ports' });
  await page.goTo(`/sandboxes/${id}/ports`);
  await page.shows('No port is public.');
  await page.page.evaluate(
    `placeOf({ region: 'Public ports' }).querySelector('input').value = 8080`,
  );
  await page.press('Make public');
  const link = `[...document.querySelectorAll('a')].find((each) => /^8080-/u.test(each.textContent))`;
  const href = await page.until<string>('the link', `${link}?.href`);
  t.regex(href, /^http:\/\/8080-\w+\.[\w.]+\/$/u);
  await page.page.evaluate(`{
    const [port, ttl] = placeOf({ region: 'Tokens for other ports' }).querySelectorAll('input');
    port.value = 3000;
    ttl.value = 'soon';
  }`);
  await page.press('Create token');
  await page.reads('section:last-of-type .problem', /ttl/u);
  await page.fill('Valid for', '1h30m');
  await page.press('Create token');
  const token = await page.reads('.secret code', /./u);
  await page.reads('section:last-of-type table', /3000[^]*in 1 hr\./u);
  await page.goTo(`/sandboxes/${id}/ports`);
  await page.shows('Revoke');
  t.false((await page.read('body')).includes(token));
  await page.press('Revoke');
  await page.press('Close');
  await page.shows('No port is public.');
  t.deepEqual(await api.data('GET', `/api/sandboxes/${id}/ports`), { ports: [] });
  t.like(await api.data('GET', `/api/sandboxes/${id}/port-tokens`), { tokens: [] });
  await leave(t.context, id);
  t.true(page.page.problems.splice(0).every((each) => each.includes('status of 400')));
});

test.serial('a policy is written, obeyed, and its decisions stand beside it', async (t) => {
  const { page, api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { name: 'limited' });
  await page.goTo(`/sandboxes/${id}/network`);
  await page.fill('Where no rule matches, it', 'deny');
  await page.fill('Allowed', 'good.test\nnot a target');
  await page.press('Save');
  await page.reads('.problem', /./u);
  await page.fill('Allowed', 'good.test');
  await page.press('Save');
  await page.shows('The policy applies to new connections.');
  const { network } = await getSandbox(api, id);
  t.deepEqual(network, { egress: { default: 'deny', allow: ['good.test'] } });
  const both = `${ask('good.test')}; ${ask('bad.test')} || true`;
  t.is(await outputOf(api, id, both), '200 000 ', 'the name is not looked up');
  await page.reads('table', /good\.test:80\s+rule good\.test, \d+ attempts?\s+allowed/u);
  await page.reads('table', /bad\.test:53\s+by default, \d+ attempts?\s+denied/u);
  await page.fill('If it may connect to nothing, it looks up', 'open');
  await page.press('Save');
  const opened = { egress: { default: 'deny', dns: 'open', allow: ['good.test'] } };
  await waitFor('all names', async () =>
    isDeepStrictEqual((await getSandbox(api, id)).network, opened),
  );
  t.is(await outputOf(api, id, both), '200 403 ');
  await page.reads('table', /bad\.test:80\s+by default, \d+ attempts?\s+denied/u);
  t.deepEqual(await page.violations(), []);
  await bring(api, id, 'pause', 'paused');
  await page.shows('The policy can be changed while the sandbox runs.');
  await bring(api, id, 'resume', 'running');
  await leave(t.context, id);
  t.true(page.page.problems.splice(0).every((each) => each.includes('status of 400')));
});

test.serial('a snapshot is made, used, kept while it is needed, and deleted', async (t) => {
  const { page, api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { name: 'original' });
  await outputOf(api, id, 'echo kept >/root/file');
  await page.goTo(`/sandboxes/${id}`);
  await page.press('Snapshot');
  await page.fill('Name', 'milestone');
  await page.press('Snapshot');
  await page.shows('The snapshot milestone is ready.');
  await page.goTo('/snapshots');
  await page.reads('table', /milestone[^]*ready/u);
  await page.press('Create sandbox');
  await page.until('it to run', `${status} === 'running'`);
  const copy = String(await page.page.evaluate("location.pathname.split('/').at(-1)"));
  t.is(await outputOf(api, copy, 'cat /root/file'), 'kept\n');
  await page.reads('.tree', /original[^]*milestone/u);
  await page.goTo('/snapshots');
  await page.press('Delete');
  await page.press('Delete');
  await page.reads('dialog .problem', /sandbox/u);
  await page.press('Close');
  await removeSandbox(api, copy);
  await page.press('Delete');
  await page.press('Delete');
  await page.shows('You have no snapshots yet.');
  await removeSandbox(api, id);
  t.deepEqual(
    page.page.problems.splice(0).filter((each) => !each.includes('status of 409')),
    [],
  );
});

test.serial('a key may do no more than its maker chose', async (t) => {
  const { page } = t.context;
  await page.goTo('/keys');
  await page.fill('Name', 'reader');
  await page.fill('Access', 'read');
  await page.press('Create key');
  const key = await page.reads('.secret code', /^key-/u);
  const call = (method: string): Promise<Response> =>
    fetch(`${page.baseUrl}/api/disks`, { method, headers: { authorization: `Bearer ${key}` } });
  t.is((await call('GET')).status, 200);
  t.is((await call('POST')).status, 403);
  await page.reads('table', /reader\s+read only/u);
  await page.press('Delete the key reader');
  await page.press('Delete');
  await waitFor('it to be refused', async () => (await call('GET')).status === 401);
  checkNoProblems(t);
});

test.serial(
  'by keyboard alone, with the focus always seen: a disk, its files and a command',
  async (t) => {
    const { page, api } = t.context;
    await page.goTo('/disks');
    await page.press('Sign out');
    await page.until('the form', "fieldOf('API key') !== null");
    t.deepEqual(await focusOf(page), { name: 'API key', isVisible: true });
    await page.type(`${api.key}\n`);
    await page.shows('Create disk');
    await page.goTo('/disks');
    await page.shows('Create disk');
    t.deepEqual(await chooseBy(page, 'Create disk'), [
      ...['Skip to the content', 'Berth', 'Disks', 'Sandboxes', 'Snapshots', 'Images', 'Activity'],
      ...['Usage', 'Webhooks', 'API keys', 'Dark colours', 'Sign out', 'Create disk'],
    ]);
    t.is((await focusOf(page)).name, 'Name');
    await page.type('typed\n');
    await page.shows('it is not shown again');
    t.deepEqual(await chooseBy(page, 'Open the disk'), ['Copy token', 'Open the disk']);
    await page.shows('This folder is empty.');
    t.deepEqual(await chooseBy(page, 'New file'), [
      ...['Disks', 'Delete disk', 'Files', 'Search', 'Run', 'Access', 'Figures', 'typed'],
      ...['New folder', 'New file'],
    ]);
    await page.until('the editor', `document.activeElement.matches('.cm-content')`);
    await page.type('by hand');
    await tabTo(page, 'Path on the disk', 'Shift');
    await page.type('notes.txt');
    await tabTo(page, 'Save');
    await page.control('s');
    await page.type('\n');
    await page.shows('notes.txt is saved.');
    const isOpened = `document.activeElement.matches('.cm-content')`;
    await page.until('its editor', `${isOpened} && fieldOf('Path on the disk') === null`);
    await tabTo(page, 'Run', 'Shift');
    await page.type('\n');
    await page.shows('Nothing has been run yet.');
    await tabTo(page, 'Command');
    await page.type('cat notes.txt\n');
    await page.reads('.output', /^by hand$/mu);
    await chooseBy(page, 'Delete disk', 'Shift');
    await page.type('typed');
    await chooseBy(page, 'Delete disk');
    await page.until('the list', "location.pathname === '/console/disks'");
    await waitFor('it to be gone', async () => {
      const disks = await api.data<{ name: string }[]>('GET', '/api/disks');
      return disks.every(({ name }) => name !== 'typed');
    });
    page.page.problems.splice(0); // The page may have asked for the disk once more.
  },
);

test.serial('by keyboard alone: a sandbox, its terminal, and its end', async (t) => {
  const { page, api } = t.context;
  await page.goTo('/sandboxes');
  await page.shows('Create sandbox');
  await chooseBy(page, 'Create sandbox');
  await page.type('typed');
  await tabTo(page, 'Memory');
  await page.type('256');
  await tabTo(page, 'Create sandbox');
  await page.type('\n');
  await page.until('it to run', `${status} === 'running'`);
  await chooseBy(page, 'Terminal');
  const rows = '[role=tabpanel] .xterm-rows';
  await page.reads(rows, /[#$]/u);
  await page.until('the focus', `document.activeElement.closest('.terminal') !== null`);
  await page.type('echo by-"keyboard"\n');
  await page.reads(rows, /^by-keyboard/mu);
  await page.key('Tab'); // The shell's.
  t.is((await focusOf(page)).name, 'Terminal');
  await page.key('F6', 'Control');
  t.regex((await focusOf(page)).name, /^1: /u);
  t.true((await focusOf(page)).isVisible);
  await chooseBy(page, 'Stop', 'Shift');
  await page.until('it to stop', `${status} === 'stopped'`);
  await chooseBy(page, 'Delete');
  await page.type('typed');
  await chooseBy(page, 'Delete');
  await page.shows('typed is deleted.');
  await waitFor('it to be gone', async () => (await findSandbox(api, 'typed')) === undefined);
  page.page.problems.splice(0); // The terminal's connection.
});

test.serial('a dialogue keeps the focus until it is closed, and gives it back', async (t) => {
  const { page } = t.context;
  await page.goTo('/disks');
  await page.shows('Create disk');
  await chooseBy(page, 'Create disk');
  const seen = new Set<string>();
  for (let n = 0; n < 8; n += 1) {
    await page.key('Tab');
    seen.add((await focusOf(page)).name);
  }
  seen.delete('body'); // The browser's own part of the window.
  t.deepEqual([...seen].sort(), ['Allowed addresses', 'Close', 'Create disk', 'Name']);
  await page.key('Escape');
  t.deepEqual(await focusOf(page), { name: 'Create disk', isVisible: true });
  checkNoProblems(t);
});
