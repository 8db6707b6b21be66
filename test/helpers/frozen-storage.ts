import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readFile, rename } from 'node:fs/promises';
import { waitFor } from './wait.ts';

/*
 * A watchdog that outlives the test process: at the end of its input, which is the test's end, the
 * file system is ended, too. Without its process the kernel fails whatever hangs on it.
 */
const WATCHDOG = 'read -r _; kill -9 "$1"; umount -l "$2"';

/** A directory on a FUSE file system (bindfs) that can be made to hang, as network storage does. */
export class FrozenStorage implements AsyncDisposable {
  readonly directory: string;
  readonly #bindfs: ChildProcess;
  readonly #watchdog: ChildProcess;

  private constructor(directory: string, bindfs: ChildProcess, watchdog: ChildProcess) {
    this.directory = directory;
    this.#bindfs = bindfs;
    this.#watchdog = watchdog;
  }

  /** @param directory its contents are moved; nothing may be using it */
  static async mount(directory: string): Promise<FrozenStorage> {
    const beneath = `${directory}.beneath`;
    await rename(directory, beneath);
    await mkdir(directory);
    const bindfs = spawn('bindfs', ['-f', beneath, directory], { stdio: 'ignore' });
    const args = ['-c', WATCHDOG, 'watchdog', String(bindfs.pid), directory];
    const watchdog = spawn('sh', args, { stdio: ['pipe', 'ignore', 'ignore'], detached: true });
    await waitFor('the file system', async () =>
      (await readFile('/proc/self/mountinfo', 'utf8')).includes(` ${directory} `),
    );
    return new FrozenStorage(directory, bindfs, watchdog);
  }

  /** Makes the file system hang. */
  freeze(): void {
    this.#bindfs.kill('SIGSTOP');
  }

  thaw(): void {
    this.#bindfs.kill('SIGCONT');
  }

  /** Ends the file system for good: whatever is asked of it fails with ENOTCONN. */
  break(): void {
    this.#bindfs.kill('SIGKILL');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#watchdog.exitCode !== null) return;
    this.thaw();
    const ended = once(this.#watchdog, 'exit');
    this.#watchdog.stdin?.end();
    await ended;
  }
}
