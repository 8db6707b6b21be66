import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';
import { MiB } from '../shared/units.ts';
import { ConsolePage } from '../test/helpers/console-page.ts';
import { freePorts } from '../test/helpers/ports.ts';
import { containerSettings, createSandbox, outputOf } from '../test/helpers/sandboxes.ts';
import { Stack } from '../test/helpers/stack.ts';
import { printComparison, printFigures, printRows } from './statistics.ts';

const STREAM_BYTES = 50 * MiB;
const SANDBOXES = 1_000;
const SIZE = { width: 1280, height: 800, deviceScaleFactor: 1, mobile: false };
/** The file of the benchmark, as the sandbox makes it. */
const MAKE_FILE = `seq 10000000 | head -c ${STREAM_BYTES} >/tmp/stream`;
/**
 * The same bytes in the page, as a terminal passes them on: with a carriage return in each line.
 */
const MAKE_BYTES = `{
  let text = '', length = 0, n = 0;
  const parts = [];
  while (length < ${STREAM_BYTES}) {
    n += 1;
    const line = n + '\\n';
    length += line.length;
    text += n + '\\r\\n';
    if (text.length >= 65536) { parts.push(new TextEncoder().encode(text)); text = ''; }
  }
  parts.push(new TextEncoder().encode(text));
  globalThis.streamParts = parts;
}`;
/**
 * Draws the bytes in an xterm.js of the same size and options, and resolves with the milliseconds.
 */
const DRAW_BARE = `new Promise((resolve) => {
  const shown = document.querySelector('[role=tabpanel]:not([hidden])').getBoundingClientRect();
  const box = document.createElement('div');
  box.style.cssText = 'position:fixed;z-index:50;left:' + shown.x + 'px;top:' + shown.y +
    'px;width:' + shown.width + 'px;height:' + shown.height + 'px';
  document.body.append(box);
  const terminal = new bareXterm.Terminal({ cols: benchSize.cols, rows: benchSize.rows,
    fontFamily: "ui-monospace, 'Cascadia Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace",
    fontSize: 13, scrollback: 10000 });
  terminal.open(box);
  const begunAt = performance.now();
  const parts = [...streamParts];
  // Not all at once: xterm.js refuses more than 50 MB that wait.
  const next = () => {
    const part = parts.shift();
    if (part !== undefined) return terminal.write(part, next);
    requestAnimationFrame(() => {
      const ms = performance.now() - begunAt;
      terminal.dispose();
      box.remove();
      resolve(ms);
    });
  };
  for (let n = 0; n < 16; n += 1) {
    const part = parts.shift();
    if (part !== undefined) terminal.write(part, n === 15 ? next : undefined);
  }
})`;
/** Resolves with the milliseconds from now until the terminal shows the end of the stream. */
const watch = (mark: string): string => `globalThis.drawn = new Promise((resolve) => {
  const begunAt = performance.now();
  const look = () => {
    const rows = document.querySelector('[role=tabpanel]:not([hidden]) .xterm-rows');
    if (rows.textContent.includes('${mark}')) resolve(performance.now() - begunAt);
    else requestAnimationFrame(look);
  };
  look();
}); 0`;
/** The answer of one sandbox, as that of a thousand. */
const THOUSAND = `{
  const ask = globalThis.fetch;
  globalThis.fetch = async (...args) => {
    const answer = await ask(...args);
    if (!new URL(answer.url).pathname.endsWith('/api/sandboxes')) return answer;
    const body = await answer.json();
    const [one] = body.data.sandboxes;
    const many = Array.from({ length: ${SANDBOXES} }, (_, n) => ({
      ...one, name: one.name + '-' + n,
      sandbox_id: one.sandbox_id.slice(0, -6) + String(n).padStart(6, '0'),
    }));
    const whole = { ...body, data: { ...body.data, sandboxes: many } };
    return new Response(JSON.stringify(whole), { status: 200, headers: answer.headers });
  };
}`;
/** Scrolls through the list and back, and resolves with the time of each frame. */
const SCROLL = `new Promise((resolve) => {
  const times = [];
  const height = document.documentElement.scrollHeight - innerHeight;
  let at = 0, step = 120, before = performance.now();
  const frame = (now) => {
    times.push(now - before);
    before = now;
    at += step;
    if (at >= height) step = -120;
    scrollTo(0, at);
    if (at > 0) requestAnimationFrame(frame);
    else resolve(times.slice(1));
  };
  requestAnimationFrame(frame);
})`;
/** When the list of disks could be used, by the page's own clock. */
const USABLE = `addEventListener('DOMContentLoaded', () => {
  const look = () => {
    if (byName('Create disk')) globalThis.usableAt = performance.now();
    else requestAnimationFrame(look);
  };
  look();
})`;

async function benchLoad(page: ConsolePage, rounds: number): Promise<void> {
  const { page: tab } = page;
  const { identifier } = await tab.send('Page.addScriptToEvaluateOnNewDocument', {
    source: USABLE,
  });
  await tab.send('Network.setCacheDisabled', { cacheDisabled: true });
  const samples = { usable: [] as number[], paint: [] as number[], interactive: [] as number[] };
  for (let round = 0; round < rounds; round += 1) {
    tab.requests.length = 0;
    await page.goTo('/disks');
    samples.usable.push(await page.until<number>('the list', 'globalThis.usableAt'));
    const paint = `performance.getEntriesByName('first-contentful-paint')[0]?.startTime`;
    samples.paint.push(await page.until<number>('the first paint', paint));
    const entry = `performance.getEntriesByType('navigation')[0].domInteractive`;
    samples.interactive.push(await page.until<number>('the document', entry));
  }
  const assets = tab.requests.filter((url) => url.includes('/console/assets/'));
  const sizes = assets.map(async (url) => gzipSync(await (await fetch(url)).bytes()).length);
  const bytes = (await Promise.all(sizes)).reduce((sum, each) => sum + each, 0);
  printFigures('first load', { compressed: bytes / 1000 }, { unit: 'kB', target: '≤ 250' });
  printRows(
    'first load, nothing cached (target <= 1000 ms until usable)',
    [
      { name: 'document interactive', samples: samples.interactive },
      { name: 'first contentful paint', samples: samples.paint },
      { name: 'list shown and usable', samples: samples.usable },
    ],
    'ms',
  );
  await tab.send('Network.setCacheDisabled', { cacheDisabled: false });
  await tab.send('Page.removeScriptToEvaluateOnNewDocument', { identifier });
}

async function benchScroll(page: ConsolePage, rounds: number): Promise<void> {
  const { page: tab } = page;
  const { identifier } = await tab.send('Page.addScriptToEvaluateOnNewDocument', {
    source: THOUSAND,
  });
  await page.goTo('/sandboxes');
  await page.shows('1,000 sandboxes');
  const frames: number[] = [];
  for (let round = 0; round < rounds; round += 1) {
    frames.push(...((await tab.evaluate(SCROLL)) as number[]));
  }
  const rate = (1000 * frames.length) / frames.reduce((sum, each) => sum + each, 0);
  printRows(
    `list of 1,000 sandboxes, scrolled: ${rate.toFixed(1)} frames/s (target 60)`,
    [{ name: 'time of a frame', samples: frames }],
    'ms',
  );
  await tab.send('Page.removeScriptToEvaluateOnNewDocument', { identifier });
}

async function loadXterm(page: ConsolePage): Promise<void> {
  const { outputFiles } = await build({
    stdin: {
      contents: "export { Terminal } from '@xterm/xterm';",
      resolveDir: join(import.meta.dirname, '../clients/console'),
    },
    ...{ bundle: true, write: false, minify: true, format: 'iife', globalName: 'bareXterm' },
  });
  await page.page.evaluate(`${outputFiles[0]?.text ?? ''}; globalThis.bareXterm = bareXterm; 0`);
}

async function benchTerminal(page: ConsolePage, id: string, rounds: number): Promise<void> {
  await page.goTo(`/sandboxes/${id}/terminal`);
  const rows = '[role=tabpanel] .xterm-rows';
  await page.reads(rows, /[#$]/u);
  await loadXterm(page);
  await page.page.evaluate(`${MAKE_BYTES}; 0`);
  await page.type('clear; echo "size $(tput cols) $(tput lines) end"\n');
  const size = await page.reads(rows, /size \d+ \d+ end/u);
  const [, cols, lines] = /size (\d+) (\d+) end/u.exec(size) ?? [];
  await page.page.evaluate(`globalThis.benchSize = { cols: ${cols}, rows: ${lines} }; 0`);
  // DevTools would copy each frame of the session to this process, which costs more than its
  // drawing.
  await page.page.send('Network.disable');
  const times = { ours: [] as number[], baseline: [] as number[] };
  for (let round = 0; round < rounds; round += 1) {
    await page.type(`clear; cat /tmp/stream; echo "dra""wn-${round}"`);
    await page.page.evaluate(watch(`drawn-${round}`));
    await page.type('\n');
    times.ours.push((await page.page.evaluate('drawn')) as number);
    times.baseline.push((await page.page.evaluate(DRAW_BARE)) as number);
  }
  await page.page.send('Network.enable');
  printComparison(
    'cat of 50 MiB, until it is drawn',
    times,
    { ours: 'terminal of the console', baseline: 'bare xterm.js' },
    { unit: 'ms', target: '<= 2, which is 0.5 of the throughput' },
  );
}

/** `npm run bench -- console [--rounds N] [--only load,list,terminal]`: see docs/benchmarks.md. */
export async function benchConsole(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: 'string', default: '5' },
      only: { type: 'string', default: 'load,list,terminal' },
    },
  });
  const rounds = Number(values.rounds);
  const only = new Set(values.only.split(','));
  const directory = await mkdtemp(join(tmpdir(), 'berth-bench-console-'));
  const [control = 0, agent = 0] = await freePorts(2);
  const origin = `http://127.0.0.1:${control}`;
  const stack = await Stack.start({
    ...containerSettings(),
    ...{ CONTROL_PORT: String(control), PUBLIC_BASE_URL: origin, ALLOWED_ORIGINS: origin },
    ...{ AGENT_PORT: String(agent), AGENT_PUBLIC_URL: `http://127.0.0.1:${agent}` },
  });
  try {
    const api = await stack.newClient();
    const { sandbox_id: id } = await createSandbox(api, { name: 'bench' });
    await outputOf(api, id, MAKE_FILE);
    await using page = await ConsolePage.open(directory, origin);
    await page.page.send('Emulation.setDeviceMetricsOverride', SIZE);
    await page.signInAs(api);
    if (only.has('load')) await benchLoad(page, rounds);
    if (only.has('list')) await benchScroll(page, rounds);
    if (only.has('terminal')) await benchTerminal(page, id, rounds);
  } finally {
    await stack.stop();
    await rm(directory, { recursive: true });
  }
}
