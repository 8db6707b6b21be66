import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { waitFor } from './wait.ts';

const run = promisify(execFile);
const SHOWN_MS_MAX = 60_000;

const quote = (word: string): string => `'${word.replaceAll("'", "'\\''")}'`;

/** A program in a real terminal: tmux has the other end, types and looks. */
export class Terminal implements AsyncDisposable {
  readonly #socket: string;

  private constructor(socket: string) {
    this.#socket = socket;
  }

  /**
   * @param directory where its socket is
   * @param environment all variables of the program
   */
  static async open(
    directory: string,
    words: readonly string[],
    environment: Readonly<Record<string, string>>,
    { cols, rows }: { readonly cols: number; readonly rows: number } = { cols: 80, rows: 24 },
  ): Promise<Terminal> {
    opened += 1;
    const terminal = new Terminal(join(directory, `tmux-${opened}`));
    const pairs = Object.entries(environment).map(([name, value]) => quote(`${name}=${value}`));
    const size = ['-x', String(cols), '-y', String(rows)];
    const command = `env -i TERM=tmux-256color ${pairs.join(' ')} ${words.map(quote).join(' ')}`;
    // The line stays when the program has ended, with its exit code.
    const kept = `${command}; printf '\\n[ended with %s]\\n' $?; exec sleep infinity`;
    await terminal.#tmux('-f', '/dev/null', 'new-session', '-d', ...size, 'sh', '-c', kept);
    return terminal;
  }

  /** Types text as it is. */
  async type(text: string): Promise<void> {
    await this.#tmux('send-keys', '-l', '--', text);
  }

  /** Presses keys by tmux's names, such as `Enter` and `C-c`. */
  async press(...keys: string[]): Promise<void> {
    await this.#tmux('send-keys', ...keys);
  }

  /** Types a line, with Enter. */
  async enter(line: string): Promise<void> {
    await this.type(line);
    await this.press('Enter');
  }

  async resize(cols: number, rows: number): Promise<void> {
    await this.#tmux('resize-window', '-x', String(cols), '-y', String(rows));
  }

  /** Text on the screen, and text that has scrolled out of it. */
  async screen(): Promise<string> {
    return this.#tmux('capture-pane', '-p', '-J', '-S', '-');
  }

  /** Waits until it shows what matches. @returns the match */
  async shows(wanted: RegExp): Promise<RegExpExecArray> {
    let screen = '';
    try {
      return await waitFor(
        `the terminal to show ${wanted}`,
        async () => {
          screen = await this.screen();
          return wanted.exec(screen) ?? undefined;
        },
        SHOWN_MS_MAX,
      );
    } catch (error) {
      throw new Error(`${String(error)}; it shows:\n${screen}`, { cause: error });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#tmux('kill-server').catch(() => undefined); // The server has ended by itself.
  }

  async #tmux(...args: string[]): Promise<string> {
    const { stdout } = await run('tmux', ['-S', this.#socket, ...args]);
    return stdout;
  }
}
let opened = 0;
