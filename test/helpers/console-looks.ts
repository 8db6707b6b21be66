/* How pages of the console look and behave while they are loaded. */
import type { ConsolePage } from './console-page.ts';

/** Something of the console that can be looked at. */
export interface Place {
  readonly name: string;
  /** Below /console. */
  readonly path: string | (() => string);
  /** Text that can be read when the page is complete. */
  readonly shows: string;
  /** Opens more to look at, one after the other; dialogues are closed again. */
  readonly opens?: readonly ((page: ConsolePage) => Promise<void>)[];
}

export interface Looks {
  /** Findings of axe-core, each with the theme and the width. */
  readonly violations: readonly string[];
  /** Shifts of the layout that nobody has asked for, as Chromium reports them. */
  readonly jumps: readonly string[];
  /** Signs of loading that were shown earlier than 200 ms after the loading began. */
  readonly hurried: readonly number[];
  /** Widths at which the page, or a table of it, must be scrolled sideways. */
  readonly wide: readonly number[];
}

/** Themes, and the widths in which they are looked at. */
const LOOKS = [
  ['light', 1120],
  ['dark', 390],
] as const;
/** Less than what a timer of 200 ms may come early by. */
const SPINNER_AFTER_MS = 195;

/** Runs in each page before its own scripts. */
const WATCH = `{
  const seen = { jumps: [], hurried: [], spinners: 0, pending: 0 };
  globalThis.watched = seen;
  const nameOf = (node) => node?.nodeType === 1
    ? node.tagName.toLowerCase() + (node.className ? '.' + node.className : '') : '#text';
  new PerformanceObserver((list) => {
    for (const { value, hadRecentInput, sources } of list.getEntries()) {
      if (hadRecentInput) continue;
      seen.jumps.push(value.toFixed(4) + ' ' + sources.map(({ node, previousRect: a, currentRect: b }) =>
        nameOf(node) + ' ' + [a.x, a.y, a.width, a.height] + ' → ' + [b.x, b.y, b.width, b.height]).join('; '));
    }
  }).observe({ type: 'layout-shift', buffered: true });
  const begun = new WeakMap();
  new MutationObserver((changes) => {
    for (const change of changes) for (const node of change.addedNodes) {
      if (node.nodeType !== 1) continue;
      const now = performance.now();
      for (const each of [node, ...node.querySelectorAll('.loading')])
        if (each.matches('.loading') && !begun.has(each)) begun.set(each, now);
      for (const each of [node, ...node.querySelectorAll('.loading > span')]) {
        if (!each.matches('.loading > span')) continue;
        seen.spinners += 1;
        const waited = now - begun.get(each.parentElement);
        if (waited < ${SPINNER_AFTER_MS}) seen.hurried.push(waited);
      }
    }
  }).observe(document, { childList: true, subtree: true });
  const ask = fetch;
  globalThis.fetch = (...all) => {
    seen.pending += 1;
    return ask(...all).finally(() => { seen.pending -= 1; });
  };
}`;

const IS_WIDE = `document.documentElement.scrollWidth > innerWidth ||
  [...document.querySelectorAll('.table-box')].some((box) => box.scrollWidth > box.clientWidth)`;
const IS_SETTLED = `new Promise((resolve) => {
  requestAnimationFrame(() => requestAnimationFrame(() => resolve(
    watched.pending === 0 && document.querySelector('.loading') === null
    && document.querySelector('.editor:empty, .terminal:empty') === null)));
})`;

/** Watches all pages that are loaded from now on. */
export async function watchLooks(page: ConsolePage): Promise<void> {
  await page.page.send('Page.addScriptToEvaluateOnNewDocument', { source: WATCH });
}

async function resize(page: ConsolePage, width: number): Promise<void> {
  const size = { width, height: 800, deviceScaleFactor: 1, mobile: false };
  await page.page.send('Emulation.setDeviceMetricsOverride', size);
}

/** Loads a place in one of the themes, and waits until all of it is there. */
async function load(page: ConsolePage, place: Place, theme: string, width: number): Promise<void> {
  const { path, shows } = place;
  await page.page.evaluate(`localStorage.setItem('berth:theme', '${theme}')`);
  await resize(page, width);
  await page.goTo(typeof path === 'string' ? path : path());
  await page.shows(shows);
  await page.until(`${place.name} to be complete`, IS_SETTLED);
}

/** Looks at a place light and dark, on a wide screen and on a phone. */
export async function lookAt(page: ConsolePage, place: Place): Promise<Looks> {
  const looks = { violations: [] as string[], jumps: [] as string[], hurried: [] as number[] };
  const wide: number[] = [];
  const look = async (theme: string, width: number): Promise<void> => {
    const found = await page.violations();
    looks.violations.push(...found.map((each) => `${theme} ${width}: ${each}`));
    if (await page.page.evaluate(IS_WIDE)) {
      wide.push(width);
    }
  };
  for (const [theme, width] of LOOKS) {
    await load(page, place, theme, width);
    const { jumps, hurried } = (await page.page.evaluate('watched')) as Looks;
    looks.jumps.push(...jumps.map((each) => `${theme} ${width}: ${each}`));
    looks.hurried.push(...hurried);
    await look(theme, width);
    for (const open of place.opens ?? []) {
      await open(page);
      await look(theme, width);
      await page.page.evaluate(`document.querySelector('dialog[open]')?.close()`);
      await page.until('the dialogue to close', `document.querySelector('dialog') === null`);
    }
  }
  return { ...looks, wide };
}
