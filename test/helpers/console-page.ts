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
  globalThis.byName = (name) =>
    [...scope().querySelectorAll('button, a, [role=tab], label.button')].find(
      (each) => nameOf(each) === name && seen(each) && !each.disabled);
  globalThis.fieldOf = (label) => {
    const named = [...scope().querySelectorAll('label')].find((each) => each.textContent === label);
    return named?.control ?? scope().querySelector('[aria-label=' + JSON.stringify(label) + ']');
  };
`;
const SLOW_MS = 60_000;

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
  until<T = unknown>(what: string, expression: string): Promise<T> {
    return waitFor(
      what,
      async () => {
        const value = await this.page.evaluate(expression);
        return (value ?? false) as T | false;
      },
      SLOW_MS,
    );
  }

  /** Presses a button, link or tab by its name, in the dialogue that is open, if one is. */
  async press(name: string): Promise<void> {
    const found = `byName(${JSON.stringify(name)})`;
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
  async shows(text: string): Promise<void> {
    await this.until(text, `document.body.innerText.includes(${JSON.stringify(text)})`);
  }

  /** Waits until a text can be read no more. */
  async hides(text: string): Promise<void> {
    await this.until(`${text} to go`, `!document.body.innerText.includes(${JSON.stringify(text)})`);
  }

  /** What axe-core finds wrong with the page as it is now. */
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
