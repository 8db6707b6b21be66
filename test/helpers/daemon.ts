import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { readFile } from 'node:fs/promises';

export type Environment = Record<string, string>;

/**
 * A process of a test's stack: started, stopped or killed by the test, its output kept in a file.
 */
export class Daemon {
  readonly name: string;
  readonly logPath: string;
  /** Whether it has its own process group, so that Ctrl-C in the terminal does not end it. */
  isDetached = false;
  readonly #command: readonly string[];
  readonly #environment: Environment;
  #child: ChildProcess | undefined;
  /** Settles when the process has ended and its log is closed. */
  #closed: Promise<void> = Promise.resolve();

  constructor(name: string, command: readonly string[], environment: Environment, logPath: string) {
    this.name = name;
    this.#command = command;
    this.#environment = environment;
    this.logPath = logPath;
  }

  get pid(): number {
    const pid = this.#child?.pid;
    if (pid === undefined) throw new Error(`${this.name} does not run`);
    return pid;
  }

  get isRunning(): boolean {
    return this.#child?.exitCode === null && this.#child.signalCode === null;
  }

  start(): void {
    // Setpriv has the kernel end it with the test: AVA kills a file that takes too long.
    const child = spawn('setpriv', ['--pdeathsig', 'TERM', '--', ...this.#command], {
      env: { PATH: process.env['PATH'] ?? '', ...this.#environment },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: this.isDetached,
    });
    const log = createWriteStream(this.logPath, { flags: 'a' });
    log.on('error', () => undefined); // Some tests fill the file system that the log is on.
    child.stdout.pipe(log, { end: false });
    child.stderr.pipe(log, { end: false });
    this.#child = child;
    this.#closed = once(child, 'close').then(
      () =>
        new Promise<void>((resolve) => {
          log.end(resolve);
        }),
    );
  }

  /** @returns the exit code, or null when a signal ended it */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<number | null> {
    const child = this.#child;
    if (child === undefined || !this.isRunning) {
      await this.#closed;
      return null;
    }
    const exited = once(child, 'exit') as Promise<[number | null]>;
    child.kill(signal);
    const [code] = await exited;
    await this.#closed;
    this.#child = undefined;
    return code;
  }

  async readLog(): Promise<string> {
    return readFile(this.logPath, 'utf8');
  }
}
