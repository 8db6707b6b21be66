import { randomBytes } from 'node:crypto';
import { mkdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { detectCgroups, oomKills, readPids } from '../../agent/system/cgroup.ts';
import { waitFor } from './wait.ts';

const ROOT = '/sys/fs/cgroup';
const host = await detectCgroups();

/** A cgroup in which a test limits a resource of some processes. */
export class ControlGroup implements AsyncDisposable {
  /** To be written to, to have a process join. */
  readonly procs: string;
  readonly #controller: 'pids' | 'memory';
  readonly #path = `/berth-test-${randomBytes(4).toString('hex')}`;
  readonly #directory: string;

  private constructor(controller: 'pids' | 'memory') {
    this.#controller = controller;
    this.#directory = join(ROOT, host.version === 1 ? controller : '', this.#path);
    this.procs = join(this.#directory, 'cgroup.procs');
  }

  /** @param max processes, or bytes of memory */
  static async make(controller: 'pids' | 'memory', max: number): Promise<ControlGroup> {
    const group = new ControlGroup(controller);
    await mkdir(group.#directory);
    await group.#limit(String(max));
    return group;
  }

  async add(pid: number): Promise<void> {
    await writeFile(this.procs, String(pid));
  }

  /** How many processes of the group the kernel killed for want of memory. */
  oomKills(): Promise<number> {
    return oomKills(host, this.#path);
  }

  /** Processes still in the group move to the test's own. */
  async [Symbol.asyncDispose](): Promise<void> {
    const isOldMemory = host.version === 1 && this.#controller === 'memory';
    await this.#limit(isOldMemory ? '-1' : 'max');
    const groups = await readFile('/proc/self/cgroup', 'utf8');
    const name = host.version === 1 ? `\\d+:${this.#controller}` : '0:';
    const [, own = '/'] = new RegExp(`^${name}:(.*)$`, 'mu').exec(groups) ?? [];
    const ownProcs = join(ROOT, host.version === 1 ? this.#controller : '', own, 'cgroup.procs');
    await waitFor('the control group to empty', async () => {
      for (const pid of await readPids(this.procs)) {
        // The process may have ended.
        await writeFile(ownProcs, String(pid)).catch(() => undefined);
      }
      return rmdir(this.#directory).then(
        () => true,
        () => false,
      );
    });
  }

  async #limit(max: string): Promise<void> {
    const isOldMemory = host.version === 1 && this.#controller === 'memory';
    const file = isOldMemory ? 'memory.limit_in_bytes' : `${this.#controller}.max`;
    await writeFile(join(this.#directory, file), max);
  }
}
