/*
 * Draws every page of the console, light and dark, from a real stack: `npm run screenshots`, after
 * set-up. Those that the guides show go into docs/console/, the others into .local/screenshots/.
 */
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ApiClient } from './helpers/api.ts';
import { ConsolePage } from './helpers/console-page.ts';
import { createDisk, exec } from './helpers/disks.ts';
import { freePorts } from './helpers/ports.ts';
import { containerSettings, createSandbox, execIn, forkSandbox } from './helpers/sandboxes.ts';
import { Stack } from './helpers/stack.ts';

const root = join(import.meta.dirname, '..');
const others = join(root, '.local/screenshots');
const SHOWN = new Set([
  'disk-files-light',
  'sandbox-light',
  'sandbox-network-light',
  'sandbox-terminal-dark',
]);
const SIZE = { width: 1120, height: 720, deviceScaleFactor: 1, mobile: false };
const PHONE = { width: 390, height: 760, deviceScaleFactor: 1, mobile: true };
/** Charts need some measurements, and pictures the end of what moves. */
const CHARTS_MS = 9_000;
const REST_MS = 700;

interface Picture {
  readonly name: string;
  readonly path: string;
  /** Text that can be read when the page is complete. */
  readonly shows: string;
  readonly restMs?: number;
  readonly before?: (page: ConsolePage) => Promise<void>;
}

const PROGRAM = `"""How many words each line has."""
import sys

for number, line in enumerate(sys.stdin, start=1):
    words = line.split()
    print(f"{number:4} {len(words):4}  {line.rstrip()}")
`;

async function fillDisk(api: ApiClient): Promise<string> {
  const { id } = await createDisk(api, { name: 'training-data' });
  const lines = ['mkdir -p runs/2026-11 src', `cat >src/count.py <<'end'\n${PROGRAM}end`];
  const table = 'seq 40 | sed "s/.*/run-&,0.&,done/" >runs/2026-11/results.csv';
  await exec(api, id, [...lines, table, 'echo "# Training data" >README.md'].join('\n'));
  await createDisk(api, { name: 'artifacts' });
  await createDisk(api, { name: 'shared-cache' });
  return id;
}

interface Things {
  readonly disk: string;
  readonly sandbox: string;
  readonly webhook: string;
}

async function makeThings(api: ApiClient): Promise<Things> {
  const disk = await fillDisk(api);
  const mounts = [{ disk_id: disk, path: '/mnt/data' }];
  const { sandbox_id: sandbox } = await createSandbox(api, { name: 'agent-main', mounts });
  await createSandbox(api, { name: 'nightly-tests' });
  const { sandbox_id: resting } = await createSandbox(api, { name: 'review-42' });
  await forkSandbox(api, resting, { name: 'review-42-try' });
  await api.call('POST', `/api/sandboxes/${resting}/stop?wait=true`);
  await execIn(api, sandbox, 'uname -a; nproc');
  await execIn(api, sandbox, 'ls /missing');
  await api.call('POST', `/api/sandboxes/${resting}/snapshots`, { name: 'before-review' });
  await api.call('PUT', `/api/sandboxes/${sandbox}/network`, {
    egress: { default: 'deny', allow: ['api.example.com', '10.1.0.0/16'] },
  });
  await execIn(api, sandbox, 'curl -s -m 2 http://203.0.113.5/ http://10.1.2.3:5432/ || true');
  await api.data('PUT', `/api/sandboxes/${sandbox}/ports/8080`);
  await api.data('POST', `/api/sandboxes/${sandbox}/port-tokens`, { port: 3000, ttl: '12h' });
  await api.call('POST', '/api/tokens', { name: 'ci', scopes: ['disk', 'sandbox'] });
  const { id: webhook } = await api.data<{ id: string }>('POST', '/api/webhooks', {
    url: 'http://127.0.0.1:9/berth',
  });
  await api.call('POST', '/api/tokens', { name: 'dashboard', scopes: ['read'] });
  return { disk, sandbox, webhook };
}

const type = async (page: ConsolePage): Promise<void> => {
  const rows = '[role=tabpanel] .xterm-rows';
  await page.reads(rows, /[#$]/u);
  await page.type('clear; ls -l /mnt/data\n');
  await page.reads(rows, /README.md[^]*:\/#/u);
  await page.type('python3 /mnt/data/src/count.py </mnt/data/README.md\n');
  await page.reads(rows, /# Training data[^]*:\/#/u);
  await page.type('tail -3 /mnt/data/runs/2026-11/results.csv\n');
  await page.reads(rows, /run-40,/u);
};

const pictures = ({ disk, sandbox, webhook }: Things): Picture[] => [
  { name: 'disks', path: '/disks', shows: 'training-data' },
  { name: 'disk-files', path: `/disks/${disk}`, shows: 'README.md' },
  {
    name: 'disk-editor',
    path: `/disks/${disk}?file=src/count.py`,
    shows: 'Ctrl-S',
    restMs: 1_500,
  },
  {
    name: 'disk-search',
    path: `/disks/${disk}/search`,
    shows: 'Pattern',
    async before(page) {
      await page.fill('Pattern, as for grep -E', 'words|done');
      await page.press('Search', { role: 'button', region: 'Search in files' });
      await page.reads('.matches', /words/u);
    },
  },
  {
    name: 'disk-run',
    path: `/disks/${disk}/run`,
    shows: 'Command',
    async before(page) {
      await page.fill('Command', 'python3 --version; wc -l runs/2026-11/results.csv');
      await page.press('Run', { role: 'button', region: 'Run a command' });
      await page.reads('.output', /results/u);
    },
  },
  { name: 'disk-access', path: `/disks/${disk}/access`, shows: 'Users' },
  { name: 'disk-figures', path: `/disks/${disk}/figures`, shows: 'Requests', restMs: CHARTS_MS },
  { name: 'sandboxes', path: '/sandboxes', shows: 'agent-main' },
  {
    name: 'sandbox-create',
    path: '/sandboxes',
    shows: 'agent-main',
    before: (page) => page.press('Create sandbox'),
  },
  {
    name: 'sandbox',
    path: `/sandboxes/${sandbox}`,
    shows: 'History',
    restMs: CHARTS_MS,
  },
  { name: 'sandbox-terminal', path: `/sandboxes/${sandbox}/terminal`, shows: '1:', before: type },
  { name: 'sandbox-commands', path: `/sandboxes/${sandbox}/commands`, shows: 'uname' },
  { name: 'sandbox-network', path: `/sandboxes/${sandbox}/network`, shows: 'Connection attempts' },
  { name: 'sandbox-ports', path: `/sandboxes/${sandbox}/ports`, shows: 'Public ports' },
  { name: 'snapshots', path: '/snapshots', shows: 'before-review' },
  { name: 'images', path: '/images', shows: 'Build an image' },
  { name: 'activity', path: '/activity', shows: 'created' },
  { name: 'usage', path: '/usage', shows: 'Current use and limits' },
  { name: 'webhooks', path: '/webhooks', shows: 'http://127.0.0.1:9/berth' },
  { name: 'webhook', path: `/webhooks/${webhook}`, shows: 'key.created' },
  { name: 'keys', path: '/keys', shows: 'dashboard' },
];

const THEMES = ['light', 'dark'] as const;

async function draw(page: ConsolePage, name: string, size: object = SIZE): Promise<void> {
  await page.page.send('Emulation.setDeviceMetricsOverride', size);
  await new Promise((resolve) => {
    setTimeout(resolve, REST_MS);
  });
  const { data } = await page.page.send('Page.captureScreenshot', { optimizeForSpeed: false });
  const target = SHOWN.has(name) ? join(root, 'docs/console') : others;
  await writeFile(join(target, `${name}.png`), Buffer.from(String(data), 'base64'));
}

async function drawAll(page: ConsolePage, list: readonly Picture[]): Promise<void> {
  for (const theme of THEMES) {
    await page.page.evaluate(`localStorage.setItem('berth:theme', '${theme}')`);
    for (const { name, path, shows, restMs = 0, before } of list) {
      await page.page.send('Emulation.setDeviceMetricsOverride', SIZE);
      await page.goTo(path);
      await page.shows(shows);
      await before?.(page);
      await new Promise((resolve) => {
        setTimeout(resolve, restMs);
      });
      await draw(page, `${name}-${theme}`);
    }
  }
}

async function signInAnew(page: ConsolePage, caller: { readonly key: string }): Promise<void> {
  await page.goTo('/disks');
  await page.press('Sign out');
  await page.until('the form', "fieldOf('API key') !== null");
  for (const theme of THEMES) {
    await page.page.evaluate(`localStorage.setItem('berth:theme', '${theme}')`);
    await page.goTo();
    await page.shows('Sign in');
    await draw(page, `sign-in-${theme}`);
  }
  await page.signInAs(caller);
}

async function main(directory: string): Promise<void> {
  const stack = await startStack();
  try {
    await drawEverything(stack, directory);
  } finally {
    await stack.stop();
  }
}

async function startStack(): Promise<Stack> {
  const [control = 0, agent = 0] = await freePorts(2);
  const origin = `http://127.0.0.1:${control}`;
  return Stack.start({
    ...containerSettings(),
    ...{ CONTROL_PORT: String(control), PUBLIC_BASE_URL: origin, ALLOWED_ORIGINS: origin },
    ...{ AGENT_PORT: String(agent), AGENT_PUBLIC_URL: `http://127.0.0.1:${agent}` },
    WEBHOOK_REACHABLE_NETWORKS: '127.0.0.1/32',
  });
}

async function drawEverything(stack: Stack, directory: string): Promise<void> {
  const api = await stack.newClient();
  const things = await makeThings(api);
  await using page = await ConsolePage.open(directory, stack.baseUrl);
  await page.page.send('Emulation.setDeviceMetricsOverride', SIZE);
  await page.signInAs(api);
  await drawAll(page, pictures(things));
  for (const [name, path, shows] of [
    ['sandbox', `/sandboxes/${things.sandbox}`, 'All activity'],
    ['activity', '/activity', 'key: created'],
    ['files', `/disks/${things.disk}`, 'README.md'],
    ['snapshots', '/snapshots', 'before-review'],
  ] as const) {
    await page.goTo(path);
    await page.shows(shows);
    await draw(page, `phone-${name}`, PHONE);
  }
  await page.page.send('Emulation.setDeviceMetricsOverride', SIZE);
  await signInAnew(page, await stack.newClient(['operator']));
  await drawAll(page, [{ name: 'hosts', path: '/hosts', shows: 'Agent version' }]);
}

await mkdir(others, { recursive: true });
const directory = await mkdtemp(join(tmpdir(), 'berth-test-screenshots-'));
try {
  await main(directory);
} finally {
  await rm(directory, { recursive: true });
}
