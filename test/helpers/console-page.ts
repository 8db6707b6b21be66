/* The console in a real browser, used as people use it: by what is written on it. */
import axe from 'axe-core';
import { WatchedPage } from './devtools.ts';
import { waitFor } from './wait.ts';

/** Runs in the page: what the helpers below look for. */
const FINDERS = `
  globalThis.seen = (element) => element.checkVisibility();
  globalThis.scope = () => [...document.querySelectorAll('dialog[open]')].at(-1) ?? document.body;
  globalThis.nameOf = (element) =>
    (element.getAttribute('aria-label') ?? element.textContent ?? '').trim();
  globalThis.placeOf = ({ region, row }) => {
    const place = scope();
    if (region) return [...place.querySelectorAll('section')].find(
      (each) => each.querySelector('h2')?.textContent === region);
    if (row) return [...place.querySelectorAll('tr')].find(
      (each) => [...each.cells].some((cell) => cell.textContent === row));
    return place;
  };
  globalThis.ROLES = { button: 'button, label.button', link: 'a', tab: '[role=tab]',
    summary: 'summary' };
  globalThis.byName = (name, where = {}) =>
    [...(placeOf(where)?.querySelectorAll(ROLES[where.role] ?? Object.values(ROLES).join()) ?? [])]
      .find((each) => nameOf(each) === name && seen(each) && !each.disabled);
  globalThis.fieldOf = (label) => {
    const named = [...scope().querySelectorAll('label')].find((each) => each.textContent === label);
    return named?.control ?? scope().querySelector('[aria-label=' + JSON.stringify(label) + ']');
  };
`;
const SLOW_MS = 60_000;
const KEYS = { Escape: 27, Tab: 9, Enter: 13, ArrowDown: 40, F6: 117 };

/** A control by its role and name, and its place where the name is ambiguous. */
interface Where {
  readonly role?: 'button' | 'link' | 'tab' | 'summary';
  /** The heading of the panel that it is in. */
  readonly region?: string;
  /** The text of a cell of its row. */
  readonly row?: string;
}

export class ConsolePage implements AsyncDisposable {
  readonly page: WatchedPage;
  readonly baseUrl: string;

  private constructor(page: WatchedPage, baseUrl: string) {
    this.page = page;
    this.baseUrl = baseUrl;
  }

  /** @param directory for the profile of the browser */
  static async open(directory: string, baseUrl: string): Promise<ConsolePage> {
    const page = await WatchedPage.open(directory);
    await page.send('Page.addScriptToEvaluateOnNewDocument', { source: FINDERS });
    await page.send('Emulation.setFocusEmulationEnabled', { enabled: true });
    return new ConsolePage(page, baseUrl);
  }

  async goTo(path = ''): Promise<void> {
    await this.page.goTo(`${this.baseUrl}/console${path}`);
  }

  /** Unless somebody is signed in. @param caller whose API key is typed */
  async signInAs({ key }: { readonly key: string }): Promise<void> {
    await this.goTo();
    const isIn = "(fieldOf('API key') ? 'no' : byName('Create disk') && 'yes')";
    if ((await this.until('the page', isIn)) === 'yes') return;
    await this.fill('API key', key);
    await this.press('Sign in');
    await this.shows('Create disk');
  }

  /** Waits until an expression is true, and returns what it is. */
  until<T = unknown>(what: string, expression: string, timeoutMs = SLOW_MS): Promise<T> {
    return waitFor(
      what,
      async () => {
        const value = await this.page.evaluate(expression);
        return (value ?? false) as T | false;
      },
      timeoutMs,
    );
  }

  /** Presses a button, link or tab by its name, in the dialogue that is open, if one is. */
  async press(name: string, where: Where = {}): Promise<void> {
    const found = `byName(${JSON.stringify(name)}, ${JSON.stringify(where)})`;
    await this.until(`the button ${name}`, `${found} ? (${found}.click(), true) : false`);
  }

  async fill(label: string, value: string): Promise<void> {
    const field = `fieldOf(${JSON.stringify(label)})`;
    await this.until(`the field ${label}`, `Boolean(${field}) && seen(${field})`);
    await this.page.evaluate(`{
      const field = ${field};
      field.value = ${JSON.stringify(value)};
      field.dispatchEvent(new Event('input', { bubbles: true }));
      field.dispatchEvent(new Event('change', { bubbles: true }));
    }`);
  }

  /** Waits until a text can be read. */
  async shows(text: string, timeoutMs?: number): Promise<void> {
    await this.until(text, `document.body.innerText.includes(${JSON.stringify(text)})`, timeoutMs);
  }

  /** Waits until a text can be read no more. */
  async hides(text: string): Promise<void> {
    await this.until(`${text} to go`, `!document.body.innerText.includes(${JSON.stringify(text)})`);
  }

  /** Text that a selector finds; empty when there is nothing. */
  async read(selector: string): Promise<string> {
    const found = `document.querySelector(${JSON.stringify(selector)})`;
    return (await this.page.evaluate(`${found}?.innerText ?? ''`)) as string;
  }

  /** Waits until what a selector finds says what matches. */
  async reads(selector: string, wanted: RegExp): Promise<string> {
    let text = '';
    try {
      return await waitFor(
        `${selector} to say ${wanted}`,
        async () => {
          text = await this.read(selector);
          return wanted.test(text) && text;
        },
        SLOW_MS,
      );
    } catch (error) {
      throw new Error(`${String(error)}; it says:\n${text}`, { cause: error });
    }
  }

  /** Drags files of this computer onto what a selector finds, and drops them there. */
  async drop(selector: string, files: readonly string[]): Promise<void> {
    const box = `document.querySelector(${JSON.stringify(selector)})`;
    const at = await this.until<{ x: number; y: number }>(
      selector,
      `(() => { const box = ${box}?.getBoundingClientRect();
        return box && { x: box.x + box.width / 2, y: box.y + Math.min(box.height / 2, 40) }; })()`,
    );
    const data = { items: [], files, dragOperationsMask: 1 };
    for (const type of ['dragEnter', 'dragOver', 'drop']) {
      await this.page.send('Input.dispatchDragEvent', { type, ...at, data });
    }
  }

  /** Presses a key that writes nothing. @param name such as `Escape` */
  async key(name: keyof typeof KEYS, held?: 'Shift' | 'Control'): Promise<void> {
    const windowsVirtualKeyCode = KEYS[name];
    const modifiers = held === undefined ? 0 : { Shift: 8, Control: 2 }[held];
    const given = { key: name, code: name, windowsVirtualKeyCode, modifiers };
    await this.page.send('Input.dispatchKeyEvent', { type: 'rawKeyDown', ...given });
    await this.page.send('Input.dispatchKeyEvent', { type: 'keyUp', ...given });
  }

  /** Presses a key while Control is held. */
  async control(key: string): Promise<void> {
    const code = `Key${key.toUpperCase()}`;
    const virtual = { windowsVirtualKeyCode: key.toUpperCase().charCodeAt(0) };
    const given = { key, code, modifiers: 2, ...virtual };
    await this.page.send('Input.dispatchKeyEvent', { type: 'rawKeyDown', ...given });
    await this.page.send('Input.dispatchKeyEvent', { type: 'keyUp', ...given });
  }

  /** Violations that axe-core finds on the page as it is now. */
  async violations(): Promise<string[]> {
    await this.page.evaluate(axe.source);
    const found = await this.page.evaluate(`axe.run(document, { resultTypes: ['violations'] }).then(
      ({ violations }) => violations.flatMap(({ id, nodes }) =>
        nodes.map(({ html, failureSummary }) => [id, html, failureSummary].join(': '))))`);
    return found as string[];
  }

  /** Keys, as they are typed. */
  async type(text: string): Promise<void> {
    for (const char of text) {
      const key = char === '\n' ? { key: 'Enter', code: 'Enter', text: '\r' } : { text: char };
      const windowsVirtualKeyCode = char === '\n' ? 13 : undefined;
      await this.page.send('Input.dispatchKeyEvent', {
        ...{ type: 'keyDown', windowsVirtualKeyCode },
        ...key,
      });
      await this.page.send('Input.dispatchKeyEvent', { type: 'keyUp', ...key });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.page[Symbol.asyncDispose]();
  }
}
