import type { Process, Sandbox } from '@berth/sdk';
import { FitAddon } from '@xterm/addon-fit';
import { SearchAddon } from '@xterm/addon-search';
import { Terminal } from '@xterm/xterm';

const MiB = 1024 * 1024;
/**
 * Bytes that wait to be drawn; beyond it nothing more is read, so a fast program waits for the
 * screen.
 */
const UNDRAWN_MAX = 2 * MiB;
/** Output on its way while the screen draws what came before. */
const WINDOW_BYTES = 4 * MiB;
const RESIZE_AFTER_MS = 80;
const SCROLLBACK_LINES = 10_000;
const SHELL = 'if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi';

export interface TerminalEvents {
  /** The tab has its process: the id finds it again. */
  readonly onProcess: (id: string) => void;
  readonly onTitle: (title: string) => void;
  readonly onOver: (how: TerminalEnd) => void;
  /** The keyboard leaves the terminal, in which Tab is the program's. */
  readonly onLeave: () => void;
}

/** How a terminal ended: with its process, or because it cannot be reached. */
export type TerminalEnd =
  | {
      readonly kind: 'exit';
      readonly code: number | undefined;
      readonly reason: string | undefined;
    }
  | { readonly kind: 'lost'; readonly error: Error };

/** A terminal on the page and its process in a sandbox, which outlives it. */
export class SandboxTerminal {
  readonly #terminal: Terminal;
  readonly #fit = new FitAddon();
  readonly #search = new SearchAddon();
  readonly #events: TerminalEvents;
  readonly #observer: ResizeObserver;
  #process: Process | undefined;
  #resizeTimer: ReturnType<typeof setTimeout> | undefined;
  #isClosed = false;

  constructor(element: HTMLElement, label: string, events: TerminalEvents) {
    this.#events = events;
    this.#terminal = new Terminal({
      cursorBlink: true,
      fontFamily: "ui-monospace, 'Cascadia Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace",
      fontSize: 13,
      scrollback: SCROLLBACK_LINES,
      theme: { background: '#0d1117', foreground: '#e6edf3', cursor: '#e6edf3' },
    });
    this.#terminal.loadAddon(this.#fit);
    this.#terminal.loadAddon(this.#search);
    this.#terminal.open(element);
    this.#terminal.textarea?.setAttribute('aria-label', label);
    this.#terminal.onTitleChange((title) => events.onTitle(title.slice(0, 40)));
    this.#terminal.attachCustomKeyEventHandler((event) => {
      const isLeaving = event.key === 'F6' && event.ctrlKey;
      if (isLeaving && event.type === 'keydown') events.onLeave();
      return !isLeaving;
    });
    this.#observer = new ResizeObserver(() => this.#resizeSoon());
    this.#observer.observe(element);
    this.#fit.fit();
  }

  /** Starts a shell, or attaches to the process again from its first byte that is kept. */
  async connect(sandbox: Sandbox, processId: string | undefined): Promise<void> {
    const { cols, rows } = this.#terminal;
    try {
      this.#process =
        processId === undefined
          ? await sandbox.start(SHELL, {
              terminal: { cols, rows },
              env: { TERM: 'xterm-256color' },
              window: WINDOW_BYTES,
            })
          : await sandbox.attach(processId, { window: WINDOW_BYTES });
      if (this.#isClosed) {
        this.#process.detach();
        return;
      }
      this.#events.onProcess(this.#process.id);
      this.#takeInput(this.#process);
      if (processId !== undefined) this.#resizeSoon();
      await this.#show(this.#process);
      const { exitCode, reason } = await this.#process.exit;
      this.#events.onOver({ kind: 'exit', code: exitCode, reason });
    } catch (error) {
      if (!this.#isClosed) this.#events.onOver({ kind: 'lost', error: error as Error });
    }
  }

  #takeInput(process: Process): void {
    const encoder = new TextEncoder();
    const send = (bytes: Uint8Array): void => {
      process.write(bytes).catch(() => undefined); // The end of the session says why.
    };
    this.#terminal.onData((text) => send(encoder.encode(text)));
    this.#terminal.onBinary((text) => send(Uint8Array.from(text, (char) => char.charCodeAt(0))));
  }

  async #show(process: Process): Promise<void> {
    let undrawn = 0;
    let wake = (): void => undefined;
    for await (const { bytes } of process) {
      undrawn += bytes.length;
      this.#terminal.write(bytes, () => {
        undrawn -= bytes.length;
        // Reading begins again before the last of it is drawn, so that the screen never waits.
        if (undrawn <= UNDRAWN_MAX / 2) wake();
      });
      if (undrawn <= UNDRAWN_MAX) continue;
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  }

  #resizeSoon(): void {
    clearTimeout(this.#resizeTimer);
    this.#resizeTimer = setTimeout(() => {
      if (this.#isClosed || this.#terminal.element?.offsetParent === null) return;
      this.#fit.fit();
      const { cols, rows } = this.#terminal;
      this.#process?.resize({ cols, rows }).catch(() => undefined); // The next change tries again.
    }, RESIZE_AFTER_MS);
  }

  focus(): void {
    this.#terminal.focus();
  }

  /** Selects the next place where the text occurs, or the one before. */
  find(text: string, isBackward: boolean): void {
    if (isBackward) this.#search.findPrevious(text);
    else this.#search.findNext(text);
  }

  /** The selected text. */
  get selection(): string {
    return this.#terminal.getSelection();
  }

  paste(text: string): void {
    this.#terminal.paste(text);
  }

  /** Ends the process, too. */
  async kill(): Promise<void> {
    await this.#process?.kill();
  }

  /** Leaves the page; the process runs on. */
  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#resizeTimer);
    this.#observer.disconnect();
    this.#process?.detach();
    this.#terminal.dispose();
  }
}
