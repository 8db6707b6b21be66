/* Text that a tenant writes into names, files and output stays text in the console. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import { type AddressInfo, createServer as createTcpServer } from 'node:net';
import { type ExecutionContext } from 'ava';
import { type ConsoleContext, consoleTest } from '../helpers/console-test.ts';
import { createDisk, exec } from '../helpers/disks.ts';
import { ObjectClient } from '../helpers/objects.ts';
import { createSandbox, execIn } from '../helpers/sandboxes.ts';

const test = consoleTest({ WEBHOOK_REACHABLE_NETWORKS: '127.0.0.1/32' });
/** Each would set `hacked` or load a picture if it were taken for markup. */
const MARKUP = `"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script><b id=hacked>`;
const NAME = `'"><img src=x onerror=window.hacked=1>.md`;

/** All shown text stayed text: no script ran, no element was made, nothing else was asked. */
async function stayedText(t: ExecutionContext<ConsoleContext>, where: string): Promise<void> {
  const { page, toControl, toAgent } = t.context;
  const harm = `[window.hacked, document.querySelector('#hacked, img[onerror], script:not([src])')]`;
  t.deepEqual(await page.page.evaluate(`${harm}.filter(Boolean).length`), 0, where);
  const ours = new RegExp(
    `^(?:https?|wss?)://127\\.0\\.0\\.1:(?:${toControl.port}|${toAgent.port})/`,
    'u',
  );
  const others = page.page.requests.filter(
    (url) => !ours.test(url) && !/^(?:data|blob):/u.test(url),
  );
  t.deepEqual(others, [], where);
  // An id or a name that is markup is refused, at whatever moment.
  const problems = page.page.problems.splice(0).filter((each) => !/status of 400/u.test(each));
  t.deepEqual(problems, [], where);
}

test.serial('names and contents of files are shown as they are', async (t) => {
  const { page, api, stack } = t.context;
  const disk = await createDisk(api, { name: 'hostile' });
  const client = new ObjectClient(stack.baseUrl, api.key);
  const put = async (key: string, body: string): Promise<void> => {
    const { status } = await client.call('PUT', `/${disk.id}/${encodeURIComponent(key)}`, { body });
    t.is(status, 200);
  };
  await put(NAME, MARKUP);
  await put('table.csv', `${MARKUP},b\n<script>window.hacked=1</script>,2\n`);
  await put(
    'drawing.svg',
    `<svg xmlns="http://www.w3.org/2000/svg" onload="top.hacked=1" width="9" height="9">
    <script>top.hacked=1</script><image href="http://127.0.0.1:1/asked" width="9" height="9"/></svg>`,
  );
  await put('page.html', `<!doctype html><script>top.hacked=1</script>${MARKUP}`);
  await page.goTo(`/disks/${disk.id}`);
  await page.press(NAME, { role: 'link' });
  await page.reads('.cm-content', /<script>window\.hacked/u);
  await stayedText(t, 'the editor');
  await page.press('Close', { role: 'link' });
  await page.press('table.csv', { role: 'link' });
  await page.reads('.preview', /<script>window\.hacked/u);
  await stayedText(t, 'the table');
  await page.press('Close', { role: 'link' });
  await page.press('drawing.svg', { role: 'link' });
  await page.until('the drawing', `document.querySelector('.preview img')?.complete === true`);
  await stayedText(t, 'the drawing');
  await page.goTo(`/disks/${disk.id}/search`);
  await page.fill('Pattern, as for grep -E', 'hacked');
  await page.press('Search', { role: 'button', region: 'Search in files' });
  await page.reads('.matches', /<script>window\.hacked/u);
  await stayedText(t, 'the matches');
  // Opened by itself, a page of a disk has no origin, so nothing of this one is within its reach.
  await page.page.goTo(`${page.baseUrl}/${disk.id}/page.html`);
  t.is(await page.page.evaluate('self.hacked'), undefined);
  page.page.problems.length = 0;
});

test.serial('what commands write is shown as it is', async (t) => {
  const { page, api } = t.context;
  const disk = await createDisk(api, { name: 'hostile-output' });
  await page.goTo(`/disks/${disk.id}/run`);
  await page.fill('Command', `printf '%s' '${MARKUP}' | tee /dev/stderr`);
  await page.press('Run', { role: 'button', region: 'Run a command' });
  await page.reads('.output', /<script>window\.hacked/u);
  await stayedText(t, 'the output');
  const { sandbox_id: id } = await createSandbox(api, { name: 'hostile-output' });
  await execIn(api, id, `printf '%s' '${MARKUP}'; exit 3`);
  await page.goTo(`/sandboxes/${id}/commands`);
  await page.reads('table', /<script>window\.hacked/u);
  await page.page.evaluate(`document.querySelector('td button.link').click()`);
  await page.reads('dialog .output', /<script>window\.hacked/u);
  await stayedText(t, 'the record of a command');
});

test.serial('escape sequences draw in the terminal, and do nothing beyond it', async (t) => {
  const { page, api } = t.context;
  const { sandbox_id: id } = await createSandbox(api, { name: 'hostile-escapes' });
  await page.goTo(`/sandboxes/${id}/terminal`);
  const rows = '[role=tabpanel] .xterm-rows';
  await page.reads(rows, /[#$]/u);
  // A title, a link to a script, the clipboard, and a question for the title: its answer would be
  // typed.
  const sequences = [
    `\\033]0;${MARKUP}\\007`,
    '\\033]8;;javascript:window.hacked=1\\007press me\\033]8;;\\007',
    '\\033]52;c;c3RvbGVu\\007',
    '\\033[21t',
    MARKUP,
  ].join('\\n');
  const command = `printf '${sequences.replaceAll('"', '\\"').replaceAll("'", '')}'`;
  await page.type(`${command}; echo; echo do"n"e\n`);
  await page.reads(rows, /^done/mu);
  const tab = await page.read('[role=tab]');
  t.regex(tab, /^1: /u);
  t.true(tab.length <= 50, tab);
  const link = `[...document.querySelectorAll('.xterm-rows span')]
    .find((each) => each.textContent.includes('press me'))`;
  await page.page.evaluate(`${link}?.click()`);
  await stayedText(t, 'the terminal');
  await page.type('echo "still a" shell\n');
  await page.reads(rows, /^still a shell/mu);
});

test.serial('names in lists, records and addresses are shown as they are', async (t) => {
  const { page, api } = t.context;
  await api.data('POST', '/api/tokens', { name: MARKUP.slice(0, 64), scopes: ['read'] });
  const { sandbox_id: id } = await createSandbox(api, { name: 'hostile-pages' });
  // Refused calls with markup where a number or a name belongs: their records are shown, too.
  const call = `/api/sandboxes/${id}`;
  await api.call('PUT', `${call}/ports/${encodeURIComponent(MARKUP)}`);
  await api.call('POST', `${call}/port-tokens`, { port: MARKUP, ttl: MARKUP });
  await api.call('PUT', `${call}/network`, { egress: { default: 'deny', allow: [MARKUP] } });
  await api.call('POST', '/api/webhooks', { url: MARKUP, eventTypes: [MARKUP] });
  await page.goTo('/activity?level=warning');
  for (const event of ['sandbox: port exposed', 'webhook: created']) {
    await page.press(event);
    await page.reads('dialog .output', /"outcome": "refused"/u);
    await stayedText(t, event);
    await page.press('Close');
    await page.until('the record to close', `document.querySelector('dialog') === null`);
  }
  for (const [path, shown] of [
    ['/keys', 'Create key'],
    ['/usage', 'Monthly use'],
    ['/snapshots', 'Snapshots'],
    [`/sandboxes/${id}`, 'History'],
    [`/sandboxes/${id}/ports`, 'Public ports'],
    [`/activity?about=${encodeURIComponent(MARKUP)}&disk=${encodeURIComponent(MARKUP)}`, 'Outcome'],
    [`/disks?${encodeURIComponent(MARKUP)}`, 'Create disk'],
    [`/disks/${encodeURIComponent(MARKUP)}`, 'This could not be loaded.'],
  ] as const) {
    await page.goTo(path);
    await page.shows(shown);
    await stayedText(t, path);
  }
});

test.serial('an image’s name and why it was refused are shown as they are', async (t) => {
  const { page } = t.context;
  await page.goTo('/images');
  await page.fill('Image', MARKUP);
  await page.press('Build');
  await page.reads('.problem', /./u);
  await stayedText(t, 'the refusal');
});

test.serial('a receiver that answers with markup, and its address, are text', async (t) => {
  const { page, api } = t.context;
  const receiver = createTcpServer((socket) => {
    socket.on('error', () => undefined);
    socket.once('data', () =>
      socket.end(`HTTP/1.1 299 ${MARKUP}\r\n${MARKUP}: ${MARKUP}\r\n\r\n${MARKUP}`),
    );
  });
  receiver.listen(0, '127.0.0.1');
  await once(receiver, 'listening');
  const { port } = receiver.address() as AddressInfo;
  const url = `http://127.0.0.1:${port}/?a=${encodeURIComponent(MARKUP)}&b='<b id=hacked>`;
  const { id } = await api.data<{ id: string }>('POST', '/api/webhooks', { url });
  await api.data('POST', '/api/tokens', { name: 'told', scopes: ['read'] });
  await page.goTo(`/webhooks/${id}`);
  await page.reads('table', /key\.created\s+(?:delivered|failed)/u);
  await stayedText(t, 'the deliveries');
  await page.press('Delete webhook');
  await page.reads('dialog h2', /hacked/u);
  await stayedText(t, 'the end of the webhook');
  await page.press('Delete');
  await page.reads('h1', /^Webhooks$/u);
  receiver.close();
});

test.serial('a page of another origin can do nothing with a session', async (t) => {
  const { page, api } = t.context;
  const other = createServer((_, response) => {
    response.writeHead(200, { 'content-type': 'text/html' }).end('<!doctype html><title>x</title>');
  });
  other.listen(0, '127.0.0.1');
  await once(other, 'listening');
  // Another port of the host: the same site for the browser, which sends the cookie.
  await page.page.goTo(`http://127.0.0.1:${(other.address() as AddressInfo).port}/`);
  const send = (headers: object): string =>
    `fetch(${JSON.stringify(`${page.baseUrl}/api/disks`)}, { method: 'POST', credentials: 'include',
      headers: ${JSON.stringify(headers)}, body: '{"name":"forged"}' })
      .then((each) => each.text(), () => 'refused')`;
  t.is(await page.page.evaluate(send({ 'x-berth-console': '1' })), 'refused');
  await page.page.evaluate(send({ 'content-type': 'text/plain' }));
  await page.page.evaluate(`{
    const form = document.createElement('form');
    form.method = 'post';
    form.enctype = 'text/plain';
    form.action = ${JSON.stringify(`${page.baseUrl}/api/disks`)};
    const field = document.createElement('input');
    field.name = '{"name":"forged","x":"';
    field.value = '"}';
    form.append(field);
    document.body.append(form);
    form.submit();
  }`);
  await page.until('the answer', `location.pathname === '/api/disks' && document.body !== null`);
  await page.reads('body', /unauthorized/u);
  const disks = await api.data<{ name: string }[]>('GET', '/api/disks');
  t.false(disks.some(({ name }) => name === 'forged'));
  other.closeAllConnections();
  other.close();
  page.page.problems.length = 0;
  page.page.requests.length = 0;
});

test.serial('what another account has is not there', async (t) => {
  const { page, stack } = t.context;
  const other = await stack.newClient();
  const disk = await createDisk(other, { name: 'theirs' });
  await exec(other, disk.id, 'echo secret-of-theirs > a.txt');
  const { sandbox_id: id } = await createSandbox(other, { name: 'theirs' });
  const url = 'https://hooks.example.com/secret-of-theirs';
  const { id: webhook } = await other.data<{ id: string }>('POST', '/api/webhooks', { url });
  for (const path of [
    `/disks/${disk.id}`,
    `/disks/${disk.id}?file=a.txt`,
    `/disks/${disk.id}/access`,
    `/sandboxes/${id}`,
    `/sandboxes/${id}/terminal`,
    `/sandboxes/${id}/network`,
    `/webhooks/${webhook}`,
  ]) {
    await page.goTo(path);
    await page.shows('This could not be loaded.');
    t.false((await page.read('body')).includes('secret-of-theirs'), path);
  }
  const asked = await page.page.evaluate(
    `fetch('/${disk.id}/a.txt', { headers: { 'x-berth-console': '1' } }).then((each) => each.status)`,
  );
  t.true(asked === 403 || asked === 404, String(asked));
  t.true(page.page.problems.splice(0).every((problem) => /status of 40[34]/u.test(problem)));
});

test.serial('a host that reports markup is shown as text', async (t) => {
  const { page, api, stack } = t.context;
  const { hosts } = await stack.openDirectory();
  const [known] = await hosts.list();
  if (known === undefined) throw new Error('the host has not reported');
  const report = { ...known.report, version: MARKUP };
  await hosts.exchange(MARKUP, { report, internalUrl: undefined });
  await page.goTo('/disks');
  await page.press('Sign out');
  await page.until('the form', "fieldOf('API key') !== null");
  await page.signInAs(await stack.newClient(['operator']));
  await page.press('Hosts');
  await page.until('the host', `document.body.innerText.includes(${JSON.stringify(MARKUP)})`);
  await stayedText(t, 'the hosts');
  await page.press('Drain', { region: MARKUP });
  await page.reads('dialog h2', /hacked/u);
  await stayedText(t, 'the end of a host');
  await page.goTo('/hosts');
  await page.press('Sign out');
  await page.until('the form', "fieldOf('API key') !== null");
  await page.signInAs(api);
});

test.serial('the policy of the page allows no script of its text, and no other host', async (t) => {
  const { page, toAgent } = t.context;
  const answer = await fetch(`${page.baseUrl}/console`);
  const policy = answer.headers.get('content-security-policy') ?? '';
  t.regex(policy, /default-src 'none'; script-src 'self';/u);
  const [, connect] = /connect-src ([^;]*)/u.exec(policy) ?? [];
  t.is(connect, `'self' ws://127.0.0.1:${toAgent.port}`);
  await page.goTo('/disks');
  await page.shows('Create disk');
  await page.page.evaluate(`{
    const script = document.createElement('script');
    script.textContent = 'window.hacked = 1';
    document.body.append(script);
  }`);
  const reached = await page.page.evaluate(
    `fetch('http://127.0.0.1:1/').then(() => 'reached', () => 'refused')`,
  );
  t.is(reached, 'refused');
  t.is(await page.page.evaluate('window.hacked'), undefined);
  const problems = page.page.problems.splice(0).join();
  t.regex(problems, /script-src 'self'/u);
  t.regex(problems, /connect-src 'self'/u);
});
