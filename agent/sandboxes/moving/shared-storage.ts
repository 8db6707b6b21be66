import { mkdir, readdir, rename, rm, rmdir, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { errnoOf } from '../../../shared/errors.ts';
import { hostIdPattern } from '../../../shared/ids.ts';
import { failpoint } from '../../system/failpoint.ts';
import { type FileLock, takeLock } from '../../system/file-lock.ts';
import { paths } from '../../system/paths.ts';
import { type SharedPaths, sharedPaths } from '../../system/sandbox-paths.ts';
import { checkMark, markStorage } from '../../system/storage-mark.ts';
import { readOptional } from '../../system/read-optional.ts';
import { checkedVmId, isVmId } from '../../system/vm-id.ts';
import { syncPath, writeDurably } from '../../system/write-durably.ts';

/** The note of a host whose sandboxes lie in its own data directory. */
const OWN = 'own';

const HOST_ID = new RegExp(hostIdPattern, 'u');
const isHostId = (name: string): boolean => HOST_ID.test(name);

/** The file that whoever uses a machine's directory holds locked, its shim above all (shim.c). */
const lockOf = (directory: string): string => join(directory, 'lock');

/**
 * Notes where the sandboxes of a host lie.
 * @param id of the storage; undefined: the host's own data directory
 * @throws Error while the host has sandboxes elsewhere
 */
export async function claimStorage(
  dataDir: string,
  id: string | undefined,
  hasSandboxes: boolean,
): Promise<void> {
  const path = paths.sandboxStorage(dataDir);
  const former = (await readOptional(path)) ?? OWN;
  const present = id ?? OWN;
  if (former === present) return;
  if (hasSandboxes) {
    throw new Error(
      `this host has sandboxes on ${nameOf(former)}, and SANDBOX_DIR names ${nameOf(present)}: mount ` +
        'the storage that they are on, or delete them first',
    );
  }
  await writeDurably(dirname(path), basename(path), present);
}

const nameOf = (id: string): string =>
  id === OWN ? 'its own data directory' : `the storage ${id}`;

/** Where a machine's directory lies: at a host, or with nobody. */
export type MachineFolder = { readonly hostId: string } | 'released';

/**
 * Storage on which several hosts have their sandboxes. A machine belongs to the host in whose
 * directory its own lies; it changes hands by one rename, which nobody does while its lock is held.
 */
export class SharedStorage {
  readonly paths: SharedPaths;
  readonly id: string;
  readonly #hostId: string;

  private constructor(shared: SharedPaths, id: string, hostId: string) {
    this.paths = shared;
    this.id = id;
    this.#hostId = hostId;
  }

  /** Lays the storage out where it is new. @throws Error when it is no storage of sandboxes */
  static async open(directory: string, hostId: string): Promise<SharedStorage> {
    const shared = sharedPaths(directory, hostId);
    const { sandboxes, released, templates, bases, alive } = shared;
    await stat(directory); // Not made here: one that is missing was meant to be mounted.
    for (const each of [sandboxes, released, templates, bases, alive]) {
      await mkdir(each, { recursive: true, mode: 0o700 });
    }
    return new SharedStorage(shared, await markStorage(directory), hostId);
  }

  /** The directory of a machine. @throws RangeError for what is no VM id or host */
  directoryOf(vmId: string, at: MachineFolder = { hostId: this.#hostId }): string {
    return join(this.#folderOf(at), checkedVmId(vmId));
  }

  /** Makes the directory of a machine that is about to be made. Idempotent. */
  async claim(vmId: string): Promise<void> {
    const directory = this.directoryOf(vmId);
    try {
      await failpoint('claim directory', () => mkdir(directory, { mode: 0o700 }));
      await syncPath(dirname(directory));
    } catch (error) {
      if (errnoOf(error) !== 'EEXIST') throw error;
    }
  }

  /** Whether this host has the machine. @throws Error when the storage cannot be read */
  async has(vmId: string): Promise<boolean> {
    try {
      return (await stat(this.directoryOf(vmId))).isDirectory();
    } catch (error) {
      if (errnoOf(error) !== 'ENOENT') throw error;
    }
    await this.check(); // A storage that is not mounted has none of them.
    return false;
  }

  /** @throws Error unless the storage is there now */
  check(): Promise<void> {
    return checkMark(this.paths.directory, this.id);
  }

  /** The machines in a folder. */
  async list(at: MachineFolder = { hostId: this.#hostId }): Promise<string[]> {
    try {
      const entries = await readdir(this.#folderOf(at), { withFileTypes: true });
      // A link would lead to a machine that lies, and may be used, elsewhere.
      return entries.flatMap((each) => (each.isDirectory() && isVmId(each.name) ? each.name : []));
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return [];
      throw error;
    }
  }

  /** The hosts that have, or had, machines here. */
  async hosts(): Promise<string[]> {
    return (await readdir(this.paths.hosts)).filter(isHostId);
  }

  /**
   * Gives a machine at rest up: whichever host takes it has it.
   * @returns false when it is in use
   */
  release(vmId: string): Promise<boolean> {
    const to = this.directoryOf(vmId, 'released');
    return failpoint('release directory', () => moveLocked(this.directoryOf(vmId), to));
  }

  /**
   * Takes a machine. Of several hosts that try at once, one succeeds.
   * @returns false when it is in use, or somebody else's by now
   */
  take(vmId: string, from: MachineFolder): Promise<boolean> {
    const to = this.directoryOf(vmId);
    return failpoint('take directory', () => moveLocked(this.directoryOf(vmId, from), to));
  }

  /** Removes a machine that no host goes on with. @returns false when it is in use, or was moved */
  async discard(vmId: string, at: MachineFolder): Promise<boolean> {
    const directory = this.directoryOf(vmId, at);
    await using lock = await lockMachine(directory);
    if (lock === undefined) return false;
    const remove = (): Promise<void> => rm(directory, { recursive: true, force: true });
    await failpoint('discard machine', remove);
    return true;
  }

  /**
   * Removes what a host has here that will not come back, once it has no machines. Idempotent: its
   * directory, by which it is found, goes last.
   * @returns false while there is a machine of it
   */
  async forgetHost(hostId: string): Promise<boolean> {
    const { alive, bases, templates } = this.paths;
    const directory = this.#folderOf({ hostId });
    if ((await readdir(directory)).length > 0) return false;
    await failpoint('forget host', async () => {
      for (const folder of [bases, templates]) {
        for (const name of (await readdir(folder)).filter((each) => each.startsWith(`.${hostId}-`)))
          await rm(join(folder, name), { recursive: true, force: true });
      }
      await rm(join(alive, hostId), { force: true });
    });
    await failpoint('remove host directory', () => rmdir(directory));
    return true;
  }

  #folderOf(at: MachineFolder): string {
    if (at === 'released') return this.paths.released;
    if (!isHostId(at.hostId)) throw new RangeError(`not a host: ${at.hostId}`);
    return join(this.paths.hosts, at.hostId);
  }
}

/** @returns undefined while somebody uses the machine, or when it was moved meanwhile */
async function lockMachine(directory: string): Promise<FileLock | undefined> {
  try {
    return await takeLock(lockOf(directory));
  } catch (error) {
    // EWOULDBLOCK is EAGAIN; the others: it was moved meanwhile.
    if (['EAGAIN', 'ENOENT', 'ESTALE'].includes(errnoOf(error) ?? '')) return undefined;
    throw error;
  }
}

/** Renames a directory whose lock nobody holds; durable. */
async function moveLocked(from: string, to: string): Promise<boolean> {
  if (!(await renameLocked(from, to))) return false;
  await Promise.all([dirname(from), dirname(to)].map(syncPath));
  return true;
}

async function renameLocked(from: string, to: string): Promise<boolean> {
  await using lock = await lockMachine(from);
  if (lock === undefined) return false;
  try {
    await rename(from, to);
    return true;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return false;
    throw error;
  }
}
