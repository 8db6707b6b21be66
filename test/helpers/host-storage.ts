import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readFile } from 'node:fs/promises';
import { waitFor } from './wait.ts';

/**
 * A host's own way to a directory that hosts share (bindfs, which hands locks on), as a mount of
 * network storage is: it can be taken from the host, with every lock that the host had.
 */
export class HostStorage implements AsyncDisposable {
  readonly directory: string;
  readonly #shared: string;
  #client: ChildProcess | undefined;

  private constructor(shared: string, directory: string) {
    this.#shared = shared;
    this.directory = directory;
  }

  /** @param directory is made */
  static async mount(shared: string, directory: string): Promise<HostStorage> {
    await mkdir(directory);
    const storage = new HostStorage(shared, directory);
    await storage.#mount();
    return storage;
  }

  /** Shuts the host out: its locks are free, and whatever it does on the storage fails. */
  async shutOut(): Promise<void> {
    const client = this.#client;
    if (client === undefined) return;
    const ended = once(client, 'exit');
    client.kill('SIGKILL');
    await ended;
    this.#client = undefined;
  }

  /** Mounts it anew, as the operator of a host that was shut out does. */
  async remount(): Promise<void> {
    await this.#unmount();
    await this.#mount();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.shutOut();
    await this.#unmount();
  }

  async #mount(): Promise<void> {
    const options = ['-f', '--enable-lock-forwarding', '--multithreaded'];
    this.#client = spawn('bindfs', [...options, this.#shared, this.directory], { stdio: 'ignore' });
    await waitFor('the storage', () => this.#isMounted());
  }

  async #unmount(): Promise<void> {
    if (!(await this.#isMounted())) return;
    const umount = spawn('umount', ['-l', this.directory], { stdio: 'ignore' });
    await once(umount, 'exit');
  }

  async #isMounted(): Promise<boolean> {
    return (await readFile('/proc/self/mountinfo', 'utf8')).includes(` ${this.directory} `);
  }
}
