/*
 * Every page, tab and dialogue of the console, as it looks: usable by everybody in both themes and
 * on a phone, without jumps, and without a word about loading where it takes a moment only.
 */
import type { ExecutionContext } from 'ava';
import type { ConsolePage } from '../helpers/console-page.ts';
import { type ConsoleContext, consoleTest } from '../helpers/console-test.ts';
import { lookAt, type Place, watchLooks } from '../helpers/console-looks.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { createSandbox, execIn, forkSandbox } from '../helpers/sandboxes.ts';

interface Things {
  readonly disk: string;
  readonly sandbox: string;
  readonly webhook: string;
}
const test = consoleTest({ WEBHOOK_REACHABLE_NETWORKS: '127.0.0.1/32' });
let things: Things;

/** Makes everything that a page can show. */
test.serial.before(async (t) => {
  const { api, page } = t.context;
  await watchLooks(page);
  const { id: disk } = await createDisk(api, { name: 'looked-at' });
  const picture = 'echo R0lGODlhAQABAIAAAP8AAP///yH5BAAAAAAALAAAAAABAAEAAAICRAEAOw== | base64 -d';
  const table = `printf 'name,value\\na,1\\n' >table.csv`;
  const files = `mkdir folder; ${picture} >dot.gif; ${table}; echo 'x = "1"  # text' >a.py`;
  await exec(api, disk, `${files}; printf 'a\\0b' >raw`);
  const mounts = [{ disk_id: disk, path: '/mnt/disk' }];
  const { sandbox_id: sandbox } = await createSandbox(api, { name: 'looked-at', mounts });
  await forkSandbox(api, sandbox, { name: 'its-fork' });
  await api.call('POST', `/api/sandboxes/${sandbox}/snapshots`, { name: 'its-snapshot' });
  await execIn(api, sandbox, 'echo out; echo err >&2; exit 3');
  const egress = { default: 'deny', allow: ['api.example.com'] };
  await api.call('PUT', `/api/sandboxes/${sandbox}/network`, { egress });
  await api.data('PUT', `/api/sandboxes/${sandbox}/ports/8080`);
  await api.data('POST', `/api/sandboxes/${sandbox}/port-tokens`, { port: 3000, ttl: '1h' });
  const { id: webhook } = await api.data<{ id: string }>('POST', '/api/webhooks', {
    url: 'http://127.0.0.1:9/hook',
  });
  await api.call('POST', '/api/tokens', { name: 'second', scopes: ['read'] });
  things = { disk, sandbox, webhook };
});

const disk =
  (rest = ''): (() => string) =>
  () =>
    `/disks/${things.disk}${rest}`;
const sandbox =
  (rest = ''): (() => string) =>
  () =>
    `/sandboxes/${things.sandbox}${rest}`;

const pressed =
  (name: string, where = {}) =>
  (page: ConsolePage): Promise<void> =>
    page.press(name, where);

async function share(page: ConsolePage): Promise<void> {
  await page.press('Share', { row: 'a.py' });
  await page.press('Create link');
  await page.reads('dialog code', /https?:/u);
}

async function searchIn(page: ConsolePage): Promise<void> {
  await page.fill('Pattern, as for grep -E', 'text|value');
  await page.press('Search', { role: 'button', region: 'Search in files' });
  await page.reads('.matches', /a\.py/u);
}

async function runOn(page: ConsolePage): Promise<void> {
  await page.fill('Command', 'echo out; echo err >&2; exit 3');
  await page.press('Run', { role: 'button', region: 'Run a command' });
  await page.reads('.output.error', /err/u);
}

async function addUser(page: ConsolePage): Promise<void> {
  await page.fill('Name of the new user', 'reader');
  await page.press('Add user');
  await page.reads('.secret code', /^dt-/u);
}

async function createSandboxWithAll(page: ConsolePage): Promise<void> {
  await page.press('Create sandbox');
  await page.fill('Network', 'deny');
  await page.press('Add a disk');
  await page.until('its fields', "fieldOf('Mounted at') !== null");
}

async function untilPrompt(page: ConsolePage): Promise<void> {
  await page.reads('[role=tabpanel] .xterm-rows', /[#$]/u);
}

async function showCommand(page: ConsolePage): Promise<void> {
  await page.page.evaluate(`document.querySelector('td button.link').click()`);
  await page.reads('dialog .output.error', /err/u);
}

/** Places of an account, each with a text that can be read when it is complete. */
const PLACES: readonly Place[] = [
  {
    ...{ name: 'the disks', path: '/disks', shows: 'looked-at' },
    opens: [pressed('Create disk'), pressed('Delete looked-at')],
  },
  {
    ...{ name: 'files', path: disk(), shows: 'table.csv' },
    opens: [pressed('New folder'), pressed('Rename', { row: 'a.py' }), share],
  },
  { name: 'an empty folder', path: disk('?folder=folder%2F'), shows: 'This folder is empty.' },
  { name: 'an editor', path: disk('?file=a.py'), shows: 'x = "1"' },
  { name: 'a new file', path: disk('?file=&new=1'), shows: 'Path on the disk' },
  { name: 'a table', path: disk('?file=table.csv'), shows: 'Edit as text' },
  { name: 'a picture', path: disk('?file=dot.gif'), shows: 'Download' },
  { name: 'a file of bytes', path: disk('?file=raw'), shows: 'No preview' },
  { name: 'a search', path: disk('/search'), shows: 'Pattern', opens: [searchIn] },
  { name: 'a command', path: disk('/run'), shows: 'Command', opens: [runOn] },
  {
    ...{ name: 'users', path: disk('/access'), shows: 'default' },
    opens: [addUser, pressed('Remove default')],
  },
  { name: 'figures of a disk', path: disk('/figures'), shows: 'Requests' },
  {
    ...{ name: 'the sandboxes', path: '/sandboxes', shows: 'its-fork' },
    opens: [createSandboxWithAll],
  },
  {
    ...{ name: 'a sandbox', path: sandbox(), shows: 'All activity' },
    opens: [pressed('Fork'), pressed('Snapshot')],
  },
  {
    ...{ name: 'a terminal', path: sandbox('/terminal'), shows: '1:' },
    opens: [untilPrompt],
  },
  {
    ...{ name: 'commands and processes', path: sandbox('/commands'), shows: 'exit code 3' },
    opens: [showCommand],
  },
  { name: 'a network policy', path: sandbox('/network'), shows: 'Connection attempts' },
  { name: 'ports', path: sandbox('/ports'), shows: '8080' },
  {
    ...{ name: 'the snapshots', path: '/snapshots', shows: 'its-snapshot' },
    opens: [pressed('Delete')],
  },
  { name: 'the images', path: '/images', shows: 'Build an image' },
  {
    ...{ name: 'the activity', path: '/activity', shows: 'key: created' },
    opens: [pressed('key: created')],
  },
  { name: 'the usage', path: '/usage', shows: 'Processor hours' },
  {
    ...{ name: 'the webhooks', path: '/webhooks', shows: '127.0.0.1:9/hook' },
    opens: [pressed('Only some kinds of events', { role: 'summary' })],
  },
  {
    ...{ name: 'deliveries', path: () => `/webhooks/${things.webhook}`, shows: 'key.created' },
    opens: [pressed('Delete webhook')],
  },
  {
    ...{ name: 'the API keys', path: '/keys', shows: 'second' },
    opens: [pressed('Delete the key second')],
  },
  { name: 'an address of nothing', path: '/nothing', shows: 'There is nothing at this address.' },
  { name: 'a disk that is gone', path: '/disks/dsk-0123456789abcdef', shows: 'Try again' },
];

const HOSTS: Place = {
  ...{ name: 'the hosts', path: '/hosts', shows: 'Agent version' },
  opens: [pressed('Drain')],
};

async function check(t: ExecutionContext<ConsoleContext>, place: Place): Promise<void> {
  const { page } = t.context;
  t.deepEqual(await lookAt(page, place), { violations: [], jumps: [], hurried: [], wide: [] });
  page.page.problems.splice(0); // Problems of pages that are gone.
}

for (const place of PLACES) {
  test.serial(`${place.name}: accessible, still, and no wider than a phone`, check, place);
}

test.serial('the sign-in and the hosts, too', async (t) => {
  const { page, stack } = t.context;
  await page.press('Sign out');
  await page.until('the form', "fieldOf('API key') !== null");
  await check(t, { name: 'the sign-in', path: '', shows: 'Sign in' });
  await page.signInAs(await stack.newClient(['operator']));
  await check(t, HOSTS);
});

test.serial('a slow answer is announced, and a broken one says what to do', async (t) => {
  const { page, api } = t.context;
  await page.press('Sign out');
  await page.until('the form', "fieldOf('API key') !== null");
  await page.signInAs(api);
  const conditions = { offline: false, downloadThroughput: -1, uploadThroughput: -1 };
  await page.page.send('Network.emulateNetworkConditions', { ...conditions, latency: 700 });
  await page.press('Sandboxes', { role: 'link' });
  await page.reads('.loading', /^Loading…$/u);
  await page.shows('its-fork');
  await page.page.send('Network.emulateNetworkConditions', { ...conditions, latency: 0 });
  t.deepEqual(await page.page.evaluate('watched.hurried'), []);
  t.true(Number(await page.page.evaluate('watched.spinners')) > 0);
  await page.page.send('Network.emulateNetworkConditions', {
    ...conditions,
    latency: 0,
    offline: true,
  });
  await page.press('Snapshots', { role: 'link' });
  await page.shows('This could not be loaded.');
  t.deepEqual(await page.violations(), []);
  await page.page.send('Network.emulateNetworkConditions', { ...conditions, latency: 0 });
  await page.press('Try again');
  await page.shows('its-snapshot');
  page.page.problems.splice(0);
});
