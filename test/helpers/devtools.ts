/* A headless browser that a test drives and watches over the DevTools protocol. */
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import WebSocket from 'ws';
import { openPage } from './browser.ts';
import { waitFor } from './wait.ts';

interface Message {
  readonly id?: number;
  readonly method?: string;
  readonly params?: Record<string, unknown>;
  readonly result?: Record<string, unknown>;
  readonly error?: { readonly message: string };
}

/** A page of the browser. It reaches 127.0.0.1 and nothing else. */
export class WatchedPage implements AsyncDisposable {
  /** URLs that pages asked for. */
  readonly requests: string[] = [];
  /** Errors in the console, exceptions, and violations of the content security policy. */
  readonly problems: string[] = [];
  readonly #browser: AsyncDisposable;
  readonly #socket: WebSocket;
  readonly #waiting = new Map<number, (message: Message) => void>();
  #loaded = 0;
  #id = 0;

  private constructor(browser: AsyncDisposable, socket: WebSocket) {
    this.#browser = browser;
    this.#socket = socket;
    socket.on('message', (data: Buffer) => this.#receive(JSON.parse(data.toString()) as Message));
  }

  /** @param directory for the profile of the browser */
  static async open(directory: string): Promise<WatchedPage> {
    const browser = await openPage('about:blank', directory, [
      '--remote-debugging-port=0',
      '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1',
    ]);
    const port = await waitFor('the port of the browser', async () => {
      const path = join(directory, 'browser/DevToolsActivePort');
      const [line = ''] = (await readFile(path, 'utf8').catch(() => '')).split('\n');
      return line !== '' && line;
    });
    const page = await waitFor('the page', async () => {
      const list = await fetch(`http://127.0.0.1:${port}/json/list`).catch(() => undefined);
      const targets = (await list?.json()) as { type: string; webSocketDebuggerUrl: string }[];
      return targets?.find(({ type }) => type === 'page') ?? false;
    });
    const socket = new WebSocket(page.webSocketDebuggerUrl);
    await once(socket, 'open');
    const watched = new WatchedPage(browser, socket);
    for (const domain of ['Page', 'Runtime', 'Log', 'Network'])
      await watched.send(`${domain}.enable`);
    return watched;
  }

  #receive({ id, method = '', params = {}, ...reply }: Message): void {
    if (id !== undefined) this.#waiting.get(id)?.(reply);
    if (method === 'Page.loadEventFired') this.#loaded += 1;
    // A page asks whether it may be left: it may.
    if (method === 'Page.javascriptDialogOpening') {
      this.send('Page.handleJavaScriptDialog', { accept: true }).catch(() => undefined);
    }
    if (method === 'Network.requestWillBeSent') {
      this.requests.push((params['request'] as { url: string }).url);
    }
    const isError =
      method === 'Runtime.exceptionThrown' ||
      (method === 'Runtime.consoleAPICalled' && params['type'] === 'error') ||
      (method === 'Log.entryAdded' && (params['entry'] as { level: string }).level === 'error');
    if (isError) this.problems.push(JSON.stringify(params));
  }

  /** @throws Error when the browser refuses */
  async send(method: string, params: object = {}): Promise<Record<string, unknown>> {
    this.#id += 1;
    const id = this.#id;
    const { promise, resolve } = Promise.withResolvers<Message>();
    this.#waiting.set(id, resolve);
    this.#socket.send(JSON.stringify({ id, method, params }));
    const { result = {}, error } = await promise;
    this.#waiting.delete(id);
    if (error !== undefined) throw new Error(`${method}: ${error.message}`);
    return result;
  }

  async goTo(url: string): Promise<void> {
    const before = this.#loaded;
    await this.send('Page.navigate', { url });
    await waitFor(`${url} to load`, async () => this.#loaded > before);
  }

  /** The value of an expression, which may be a promise. */
  async evaluate(expression: string): Promise<unknown> {
    const given = { expression, returnByValue: true, awaitPromise: true, userGesture: true };
    const { result } = await this.send('Runtime.evaluate', given);
    return (result as { value?: unknown }).value;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#socket.terminate();
    await this.#browser[Symbol.asyncDispose]();
  }
}
