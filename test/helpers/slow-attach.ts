import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../../agent/system/spawn.ts';
import type { Environment } from './daemon.ts';
import { temporaryDirectory } from './temporary.ts';
import { waitFor } from './wait.ts';

const source = new URL('../fixtures/slow-attach.c', import.meta.url).pathname;

/** Delays a system call of the programs that attach disks; see test/fixtures/slow-attach.c. */
export class SlowAttach implements AsyncDisposable {
  readonly #directory: AsyncDisposable & { readonly path: string };

  private constructor(directory: AsyncDisposable & { readonly path: string }) {
    this.#directory = directory;
  }

  static async build(): Promise<SlowAttach> {
    const calls = new SlowAttach(await temporaryDirectory());
    const flags = ['-std=c11', '-O2', '-Wall', '-Wextra', '-Werror', '-fPIC', '-shared'];
    await run('cc', [...flags, '-o', calls.#library, source], { timeoutMs: 60_000 });
    await mkdir(join(calls.#directory.path, 'control'));
    return calls;
  }

  /** For the agent, or for the program itself. @param name of one control file among others */
  environment(name = 'call'): Environment {
    return { LD_PRELOAD: this.#library, SLOW_ATTACH: this.#control(name) };
  }

  /** Delays the call by this many milliseconds in every program. */
  async arm(call: string, ms: number, name = 'call'): Promise<void> {
    await this.disarm(name);
    await writeFile(this.#control(name), `${call} ${ms}\n`);
  }

  async disarm(name = 'call'): Promise<void> {
    await rm(this.#control(name), { force: true });
    await rm(`${this.#control(name)}.reached`, { force: true });
  }

  /** Waits until a program has reached the call. @returns its process id */
  reached(name = 'call'): Promise<number> {
    return waitFor('the call', async () => {
      const text = await readFile(`${this.#control(name)}.reached`, 'utf8').catch(() => '');
      return text.includes('\n') && Number(text.split('\n', 1)[0]);
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#directory[Symbol.asyncDispose]();
  }

  get #library(): string {
    return join(this.#directory.path, 'slow-attach.so');
  }

  #control(name: string): string {
    return join(this.#directory.path, 'control', name);
  }
}
