import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Environment } from '../helpers/daemon.ts';

const run = promisify(execFile);
const source = new URL('../fixtures/slow-calls.c', import.meta.url).pathname;

/** The delay of each call, in milliseconds. */
interface Delays {
  /** Calls that attach an image to a loop device. */
  readonly attachMs?: number;
  readonly mountMs?: number;
  /** Calls that sync or rename. */
  readonly syncMs?: number;
}

function wordsOf({ attachMs = 0, mountMs = 0, syncMs = 0 }: Delays): Uint8Array {
  return new Uint8Array(Uint32Array.of(attachMs, mountMs, syncMs).buffer);
}

/**
 * Delays system calls of an agent and of the programs that it starts (test/fixtures/slow-calls.c).
 */
export class SlowCalls {
  readonly #library: string;
  readonly #control: string;

  private constructor(library: string, control: string) {
    this.#library = library;
    this.#control = control;
  }

  /** @param name the host's name, for its file in the directory */
  static async build(directory: string, name: string): Promise<SlowCalls> {
    const library = join(directory, `${name}-slow-calls.so`);
    await run('cc', ['-O1', '-shared', '-fPIC', '-o', library, source]);
    const control = join(directory, `${name}-slow-calls`);
    await writeFile(control, wordsOf({}));
    return new SlowCalls(library, control);
  }

  /** Starts an agent that can be slowed down. */
  get environment(): Environment {
    return { LD_PRELOAD: this.#library, SLOW_CALLS: this.#control };
  }

  /** Delays each call that begins from now on. */
  async set(delays: Delays): Promise<void> {
    await writeFile(this.#control, wordsOf(delays), { flag: 'r+' }); // Written in place, because the file is mapped.
  }
}
