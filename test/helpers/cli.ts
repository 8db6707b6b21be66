import { execFile, spawn } from 'node:child_process';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { promisify } from 'node:util';
import type { ApiClient } from './api.ts';

const builder = join(import.meta.dirname, '../../clients/cli/scripts/build.ts');

/** The result of a run of the program. */
export interface CliResult {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** How a run differs from others. */
export interface CliOptions {
  readonly input?: string | Uint8Array;
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string | undefined>>;
}

/** The command line, built for a test file into a directory of its own. */
export class Cli {
  /** Environment of its shells and terminals; `HOME` is a directory of the test's. */
  readonly environment: Readonly<Record<string, string>>;
  /** Working directory of all runs. */
  readonly directory: string;
  readonly #main: string;

  private constructor(directory: string, main: string, environment: Record<string, string>) {
    this.directory = directory;
    this.#main = main;
    this.environment = environment;
  }

  /** @param api who it calls, by its environment */
  static async in(parent: string, api?: ApiClient): Promise<Cli> {
    const directory = join(parent, 'cli');
    const home = join(directory, 'home');
    await mkdir(home, { recursive: true });
    // Where the package has it, so that it finds its own parts.
    const dist = join(directory, 'package/dist');
    await promisify(execFile)(process.execPath, [builder, dist]);
    const login = api && { BERTH_URL: api.baseUrl, BERTH_API_KEY: api.key };
    const environment = {
      PATH: process.env['PATH'] ?? '',
      HOME: home,
      LANG: 'C.UTF-8',
      ...login,
    };
    return new Cli(directory, join(dist, 'main.js'), environment);
  }

  /** The words that start it. */
  get command(): readonly [string, string] {
    return [process.execPath, this.#main];
  }

  /** Runs it to its end, without a terminal. */
  async run(args: readonly string[], options: CliOptions = {}): Promise<CliResult> {
    const [node, main] = this.command;
    const child = spawn(node, [main, ...args], {
      cwd: options.cwd ?? this.directory,
      env: { ...this.environment, ...options.env },
    });
    child.stdin.on('error', () => undefined); // The program may end without having read all of it.
    child.stdin.end(options.input ?? '');
    const exited = new Promise<number | null>((resolve) => {
      child.once('exit', resolve);
    });
    const [stdout, stderr] = await Promise.all([buffer(child.stdout), buffer(child.stderr)]);
    return { code: await exited, stdout: stdout.toString(), stderr: stderr.toString() };
  }

  /** Runs the program and resolves with its output. @throws Error unless it ends with 0 */
  async output(...args: string[]): Promise<string> {
    const { code, stdout, stderr } = await this.run(args);
    if (code !== 0) throw new Error(`berth ${args.join(' ')} ended with ${code}: ${stderr}`);
    return stdout;
  }

  /** Runs the program with --json and parses its output. @throws Error unless it ends with 0 */
  async json<T>(...args: string[]): Promise<T> {
    return JSON.parse(await this.output(...args, '--json')) as T;
  }
}
