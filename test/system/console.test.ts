/* The console in Chromium, on a real stack whose sandboxes are containers. */
import { once } from 'node:events';
import { mkdtemp } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import anyTest, { type TestFn } from 'ava';
import { keys } from '../../shared/directory/keys.ts';
import type { ApiClient } from '../helpers/api.ts';
import { ConsolePage } from '../helpers/console-page.ts';
import { checkNoProblems, endConsole } from '../helpers/console-test.ts';
import { createDisk } from '../helpers/disks.ts';
import { freePorts } from '../helpers/ports.ts';
import {
  containerSettings,
  createSandbox,
  findSandbox,
  forkSandbox,
  removeSandbox,
  settledSandbox,
} from '../helpers/sandboxes.ts';
import { Stack } from '../helpers/stack.ts';
import { waitFor } from '../helpers/wait.ts';

interface Context {
  readonly directory: string;
  readonly stack: Stack;
  readonly api: ApiClient;
  readonly page: ConsolePage;
}
const test = anyTest as TestFn<Context>;

const FIRST_LOAD_BYTES_MAX = 250_000;

const DESKTOP = { width: 1280, height: 800, deviceScaleFactor: 1, mobile: false };

test.before(async (t) => {
  const directory = await mkdtemp(join(tmpdir(), 'berth-test-console-'));
  Object.assign(t.context, { directory });
  const [port] = await freePorts(1);
  const ALLOWED_ORIGINS = `http://127.0.0.1:${port}`;
  const stack = await Stack.start({
    ...containerSettings(),
    ...{ CONTROL_PORT: String(port), ALLOWED_ORIGINS, PUBLIC_BASE_URL: ALLOWED_ORIGINS },
    WEBHOOK_REACHABLE_NETWORKS: '127.0.0.1/32',
  });
  Object.assign(t.context, { stack });
  const api = await stack.newClient();
  const page = await ConsolePage.open(directory, stack.baseUrl);
  Object.assign(t.context, { api, page });
  await page.page.send('Emulation.setDeviceMetricsOverride', DESKTOP);
});

test.after.always(async (t) => {
  await endConsole(t.context);
});

test.serial(
  'a wrong key is refused, and a right one is kept where no script reads it',
  async (t) => {
    const { page, api } = t.context;
    await page.goTo('/sandboxes');
    await page.fill('API key', `key-${'x'.repeat(43)}`);
    await page.press('Sign in');
    await page.shows('You were not signed in: the API key is not valid.');
    t.regex(page.page.problems.splice(0).join(), /status of 401/u);
    await page.fill('API key', api.key);
    await page.press('Sign in');
    await page.shows('You have no sandboxes yet.');
    const kept = await page.page.evaluate('document.cookie + JSON.stringify({ ...localStorage })');
    t.is(kept, '{}');
    const { cookies } = await page.page.send('Network.getCookies');
    t.like((cookies as object[])[0], { httpOnly: true, sameSite: 'Strict', path: '/' });
    t.false(JSON.stringify(cookies).includes(api.key));
    checkNoProblems(t);
  },
);

test.serial('the first page needs little, and nothing from elsewhere', async (t) => {
  const { page, stack } = t.context;
  page.page.requests.length = 0;
  await page.goTo('/disks');
  await page.shows('You have no disks yet.');
  const assets = page.page.requests.filter((url) => url.includes('/console/assets/'));
  const sizes = assets.map(async (url) => gzipSync(await (await fetch(url)).bytes()).length);
  const bytes = (await Promise.all(sizes)).reduce((sum, each) => sum + each, 0);
  t.true(bytes > 10_000 && bytes < FIRST_LOAD_BYTES_MAX, `${bytes}`);
  const elsewhere = page.page.requests.filter(
    (url) => !url.startsWith(`${stack.baseUrl}/`) && !/^(?:data|blob):/u.test(url),
  );
  t.deepEqual(elsewhere, []);
  checkNoProblems(t);
});

test.serial('a disk is created, found, and deleted with its name typed', async (t) => {
  const { page, api } = t.context;
  await page.goTo('/disks');
  await page.press('Create disk');
  await page.fill('Name', 'figures');
  await page.press('Create disk');
  await page.shows('it is not shown again');
  const token = await page.until<string>('the token', "scope().querySelector('code').textContent");
  t.regex(token, /^dt-/u);
  await page.press('Close');
  await page.fill('Search by name or ID', 'nothing');
  await page.shows('No name contains “nothing”.');
  await page.fill('Search by name or ID', 'figur');
  await page.press('Delete figures');
  t.false(await page.page.evaluate("Boolean(byName('Delete disk'))"));
  await page.fill('Type figures to confirm', 'figures');
  await page.press('Delete disk');
  await page.shows('You have no disks yet.');
  t.deepEqual(await api.data('GET', '/api/disks'), []);
  checkNoProblems(t);
});

test.serial('a sandbox is created, and its state is shown as it changes', async (t) => {
  const { page, api } = t.context;
  await page.goTo('/sandboxes');
  await page.press('Create sandbox');
  await page.fill('Name', 'made-here');
  await page.fill('Memory', '256');
  await page.press('Create sandbox');
  await page.shows('History');
  await page.until('it to run', "document.querySelector('h1 .status')?.textContent === 'running'");
  await page.goTo('/sandboxes');
  await page.shows('made-here');
  const shown = "document.querySelector('td .status')?.textContent";
  t.is(await page.page.evaluate(shown), 'running');
  const sandbox = await findSandbox(api, 'made-here');
  await api.call('POST', `/api/sandboxes/${sandbox?.sandbox_id}/stop`);
  await page.until('the list to follow', `${shown} === 'stopped'`);
  checkNoProblems(t);
});

test.serial('what is possible is what the state allows, and is done', async (t) => {
  const { page, api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { name: 'acted-on' });
  await page.goTo(`/sandboxes/${id}`);
  const enabled = `[...document.querySelectorAll('.page-actions button')]
    .filter((each) => !each.disabled).map((each) => each.textContent).join()`;
  await page.until('a running one', `${enabled} === 'Pause,Stop,Fork,Snapshot'`);
  await page.press('Stop');
  await page.until('a stopped one', `${enabled} === 'Start,Fork,Snapshot,Delete'`);
  await page.press('Delete');
  await page.fill('Type acted-on to confirm', 'acted-on');
  await page.press('Delete');
  await page.shows('acted-on is deleted.');
  await waitFor('it to be gone', async () => (await findSandbox(api, 'acted-on')) === undefined);
  checkNoProblems(t);
});

test.serial('forks are drawn below what they were made from', async (t) => {
  const { page, api, stack } = t.context;
  const parent = await createSandbox(api, { name: 'parent' });
  const child = await forkSandbox(api, parent.sandbox_id, { name: 'child' });
  const grandchild = await forkSandbox(api, child.sandbox_id, { name: 'grandchild' });
  await stack.agent.stop('SIGKILL');
  await stack.startAgent();
  t.is((await settledSandbox(api, child.sandbox_id)).forked_from, parent.sandbox_id);
  t.is((await settledSandbox(api, parent.sandbox_id)).forked_from, undefined);
  await page.goTo(`/sandboxes/${child.sandbox_id}`);
  const below = '.tree > li > ul > li > ul > li > .node a';
  await page.reads(below, /^grandchild$/u);
  t.is(await page.read('.tree > li > div > .node a'), 'parent');
  t.is(await page.read('.tree [aria-current=page]'), 'child');
  t.deepEqual(await page.violations(), []);
  await page.press('grandchild');
  await page.until('its page', `location.pathname.endsWith('${grandchild.sandbox_id}')`);
  await page.goTo('/keys');
  for (const { sandbox_id: id } of [grandchild, child, parent]) await removeSandbox(api, id);
  page.page.problems.length = 0; // Messages about requests that the dead agent left unanswered.
});

/** The chart of this label. */
const figure = (label: string): string => `[...document.querySelectorAll('.chart')]
  .find((each) => each.textContent.startsWith('${label}'))`;

test.serial(
  'the page of a sandbox draws what it uses, and lists what was asked of it',
  async (t) => {
    const { page, api } = t.context;
    const { sandbox_id: id } = await createSandbox(api, { name: 'measured' });
    await page.goTo(`/sandboxes/${id}`);
    for (const label of ['Processor', 'Memory in use', 'Storage']) {
      await page.until(label, `/\\d/u.test(${figure(label)}?.querySelector('strong').textContent)`);
      await page.until(`${label} as a line`, `Boolean(${figure(label)}.querySelector('polyline'))`);
    }
    await api.call('POST', `/api/sandboxes/${id}/stop?wait=true`);
    await page.reads('.timeline', /stopped[^]*done[^]*created/u);
    await page.press('All activity');
    await page.until('its events', `document.querySelectorAll('tbody tr').length === 2`);
    t.deepEqual(await page.violations(), []);
    await removeSandbox(api, id);
    checkNoProblems(t);
  },
);

test.serial(
  'the activity is filtered by thing, kind and outcome, and read page by page',
  async (t) => {
    const { page, api } = t.context;
    const { id } = await createDisk(api, { name: 'changed' });
    const users = Array.from({ length: 55 }, (_, n) => n);
    for (const n of users) {
      const nickname = `user-${n}`;
      await api.call('POST', `/api/disks/${id}/users`, { type: 'token', nickname });
    }
    await api.call('POST', '/api/tokens', { name: 'refused', scopes: ['operator'] });
    const rows = "document.querySelectorAll('tbody tr').length";
    await page.goTo('/activity');
    await page.until('a page of events', `${rows} === 50`);
    await page.press('Show older');
    await page.until('more events', `${rows} > 56`);
    await page.fill('About', 'disk');
    await page.fill('Kind', 'disk.user_added');
    await page.fill('Disk or sandbox ID', id);
    await page.until(
      'one page',
      `${rows} === 50 && !document.querySelector('tbody').innerText.includes('created')`,
    );
    await page.press('Show older');
    await page.until('all of them', `${rows} === 55 && byName('Show older') === undefined`);
    await page.goTo('/activity');
    await page.fill('Outcome', 'warning');
    await page.press('key: created');
    await page.reads('dialog .output', /"outcome": "refused"/u);
    t.deepEqual(await page.violations(), []);
    await page.press('Close');
    await api.call('DELETE', `/api/disks/${id}`);
    checkNoProblems(t);
  },
);

test.serial('a webhook is made, its deliveries are seen, and it is deleted', async (t) => {
  const { page, api } = t.context;
  let answer = 500;
  const receiver = createServer((_, response) => response.writeHead(answer).end());
  receiver.listen(0, '127.0.0.1');
  await once(receiver, 'listening');
  const url = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/hook`;
  await page.goTo('/webhooks');
  await page.fill('Address', 'https://10.0.0.1/private');
  await page.press('Create webhook');
  await page.reads('.problem', /private|address/u);
  await page.press('Only some kinds of events', { role: 'summary' });
  await page.page.evaluate(`document.querySelector('input[name="key.created"]').click()`);
  t.deepEqual(await page.violations(), []);
  await page.fill('Address', url);
  await page.press('Create webhook');
  await page.reads('.secret code', /^whsec_/u);
  await api.call('POST', '/api/tokens', { name: 'first', scopes: ['read'] });
  await page.press(url);
  await page.reads('table', /key\.created[^]*failed[^]*answered 500[^]*will be retried/u);
  answer = 204;
  await page.reads('table', /delivered[^]*answered 204/u);
  t.deepEqual(await page.violations(), []);
  await page.press('Delete webhook');
  await page.press('Delete');
  await page.shows('No webhook has been created yet.');
  t.like(await api.data('GET', '/api/webhooks'), { webhooks: [] });
  receiver.closeAllConnections();
  receiver.close();
  t.regex(page.page.problems.splice(0).join(), /^[^]*status of 400[^]*$/u);
});

test.serial('usage is shown beside what the operator lets the account have', async (t) => {
  const { page, api, stack } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { vcpu_count: 1, mem_size_mib: 256 });
  const directory = await stack.openDirectory();
  const [account] = await directory.accounts.list();
  await directory.accountLimits.change(account?.id ?? '', { vcpus: 4, requestsPerSecond: 5000 });
  await page.goTo('/usage');
  await page.reads('.meters', /Processors\s+\d of 4[^]*Sandboxes\s+\d, no limit/u);
  await page.reads('.meters', /Requests per second\s+5,000/u);
  await page.reads('.facts', /Requests\s+[1-9]/u);
  await page.page.evaluate(`fieldOf('Month').options[12].selected = true`);
  await page.page.evaluate(`fieldOf('Month').dispatchEvent(new Event('change'))`);
  await page.reads('.facts', /Requests\s+0/u);
  await removeSandbox(api, id);
  checkNoProblems(t);
});

test.serial('on a phone every page is in reach of a thumb', async (t) => {
  const { page } = t.context;
  await page.page.send('Emulation.setDeviceMetricsOverride', { ...DESKTOP, width: 390 });
  await page.goTo('/disks');
  for (const name of ['Sandboxes', 'Snapshots', 'Images', 'Activity', 'Webhooks', 'API keys']) {
    await page.press(name, { role: 'link' });
    await page.reads('h1', new RegExp(`^${name}$`, 'u'));
  }
  const isBelow = `document.querySelector('nav').getBoundingClientRect().bottom >= innerHeight - 1`;
  t.true(await page.page.evaluate(isBelow));
  await page.page.send('Emulation.setDeviceMetricsOverride', DESKTOP);
  checkNoProblems(t);
});

test.serial('signing out ends the session in this browser', async (t) => {
  const { page, api, stack } = t.context;
  await page.goTo('/disks');
  await page.shows('Disks');
  await page.press('Sign out');
  await page.until('the form', "fieldOf('API key') !== null && location.pathname === '/console'");
  const { cookies } = await page.page.send('Network.getCookies');
  t.deepEqual(cookies, []);
  await page.signInAs(api);
  // A key that is deleted ends the sessions that were begun with it.
  const other = await stack.newClient();
  await page.press('Sign out');
  await page.until('the form', "fieldOf('API key') !== null");
  await page.signInAs(other);
  const { tokens } = await other.data<{ tokens: { id: string }[] }>('GET', '/api/tokens');
  await other.call('DELETE', `/api/tokens/${tokens[0]?.id}`);
  await page.shows('Your session has ended');
  page.page.problems.length = 0; // 401s.
});

test.serial('operators see hosts, and cordon, drain and remove them', async (t) => {
  const { page, api, stack } = t.context;
  await page.signInAs(api);
  t.is(await page.page.evaluate(`byName('Hosts') === undefined`), true);
  await page.press('Sign out');
  await page.until('the form', "fieldOf('API key') !== null");
  await page.signInAs(await stack.newClient(['operator']));
  t.is(await page.page.evaluate(`byName('API keys') === undefined`), true);
  await page.press('Hosts');
  const state = '.panel-title .status';
  await page.reads(state, /^up$/u);
  await page.reads('.panel', /Processors[^]*Memory[^]*Agent version/u);
  await page.press('Cordon');
  await page.reads(state, /^cordoned$/u);
  t.deepEqual(await page.violations(), []);
  await page.press('Uncordon');
  await page.reads(state, /^up$/u);
  await page.press('Drain');
  await page.press('Drain');
  await page.reads(state, /^drained$/u);
  t.true(await page.page.evaluate(`byName('Remove') === undefined`));
  const host = await page.read('.panel h2');
  await stack.agent.stop();
  await page.reads(state, /^away$/u);
  await page.press('Remove');
  await page.fill(`Type ${host} to confirm`, host);
  await page.press('Remove');
  await page.shows('No host has ever reported to this region.');
  checkNoProblems(t);
  // The end of the stack starts its agent once more, which a removed host refuses.
  const redis = await stack.redisClient();
  await redis.del(keys.removedHosts(stack.environment['REGION'] ?? ''));
});
