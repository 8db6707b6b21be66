import { closeSync, fstatSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { native } from '../../native/native.ts';
import type { MachineMount } from '../attachments.ts';

/** Descriptors from which on an NFS server has its guards: FIRST_GUARD of wal-locks.h. */
const FIRST_GUARD = 15_360;
/** Databases locked for a paused machine; others may use those beyond. */
const DATABASES_MAX = 48;

/** A descriptor that the process has closed meanwhile has no copy. */
function copyOf(pid: number, fd: number): number[] {
  try {
    return [native.takeDescriptor(pid, fd)];
  } catch {
    return [];
  }
}

/** Undefined for one that is not mounted any more. */
const deviceOf = async ({ contents }: MachineMount): Promise<number | undefined> =>
  (await stat(contents).catch(() => undefined))?.dev;

/**
 * The WAL databases that paused machines have open on disks: nobody else gets to use them, so that
 * the machine finds them as it left them (agent/native/serve-disks/wal-locks.c). Held by locks of
 * this process, so they are free once it ends.
 */
export class LockedDatabases {
  /** Guards by VM id. */
  readonly #locked = new Map<string, readonly number[]>();

  /** Locks those that a machine's NFS server guards. @param servers its processes */
  async lock(vmId: string, servers: readonly number[]): Promise<void> {
    const locked: number[] = [];
    for (const pid of servers) {
      // A process that is ending has no descriptors to list.
      const names = await readdir(`/proc/${pid}/fd`).catch(() => []);
      const guards = names.map(Number).filter((fd) => fd >= FIRST_GUARD);
      for (const fd of guards.slice(0, DATABASES_MAX - locked.length))
        locked.push(...copyOf(pid, fd));
    }
    this.release(vmId);
    if (locked.length > 0) this.#locked.set(vmId, locked);
  }

  /** The guards of a machine, for its next server; they stay this process's. */
  guardsOf(vmId: string): readonly number[] {
    return this.#locked.get(vmId) ?? [];
  }

  /** The mounts whose disk has a database that a paused machine has locked. */
  async mountsOf(vmId: string, mounts: readonly MachineMount[]): Promise<readonly MachineMount[]> {
    const devices = new Set<number | undefined>(this.guardsOf(vmId).map((fd) => fstatSync(fd).dev));
    if (devices.size === 0) return [];
    const mounted = await Promise.all(mounts.map(deviceOf));
    return mounts.filter((_, index) => devices.has(mounted[index]));
  }

  /** Lets others use a machine's databases. Idempotent. */
  release(vmId: string): void {
    for (const fd of this.guardsOf(vmId)) closeSync(fd);
    this.#locked.delete(vmId);
  }
}
