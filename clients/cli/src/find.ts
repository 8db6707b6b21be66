import {
  ApiError,
  type Berth,
  type Disk,
  NotFoundError,
  type Sandbox,
  type Snapshot,
} from '@berth/sdk';
import { NotFoundFailure } from './failure.ts';

const SANDBOX_ID = /^[\da-f]{8}-[\da-f]{4}-7[\da-f]{3}-[\da-f]{4}-[\da-f]{12}$/iu;
const DISK_ID = /^dsk-[\da-f]{16}$/u;

/** By name or id. @throws NotFoundFailure when there is none */
export async function findSandbox(berth: Berth, nameOrId: string): Promise<Sandbox> {
  const found = SANDBOX_ID.test(nameOrId)
    ? await orUndefined(berth.sandboxes.get(nameOrId))
    : await berth.sandboxes.find(nameOrId);
  if (found !== undefined) return found;
  throw new NotFoundFailure(`there is no sandbox ${nameOrId}`, 'see berth sandbox ls');
}

/**
 * Answers after which the sandbox may be there all the same: it does not run, or the server is
 * older.
 */
const LOOK_AGAIN: ReadonlySet<string> = new Set(['not_found', 'sandbox_not_running']);

/**
 * By name or id, for a command that starts a process in it: with a name, one request both finds the
 * sandbox and opens the way to it.
 * @throws NotFoundFailure when there is none
 */
export async function findSandboxForSession(berth: Berth, nameOrId: string): Promise<Sandbox> {
  if (SANDBOX_ID.test(nameOrId)) return findSandbox(berth, nameOrId);
  try {
    return await berth.sandboxes.connect(nameOrId);
  } catch (error) {
    if (!(error instanceof ApiError && LOOK_AGAIN.has(error.code))) throw error;
    return findSandbox(berth, nameOrId);
  }
}

/** By name or id. @throws NotFoundFailure when there is none */
export async function findDisk(berth: Berth, nameOrId: string): Promise<Disk> {
  const found = DISK_ID.test(nameOrId)
    ? await orUndefined(berth.disks.get(nameOrId))
    : await berth.disks.find(nameOrId);
  if (found !== undefined) return found;
  throw new NotFoundFailure(`there is no disk ${nameOrId}`, 'see berth disk ls');
}

/** By name or id. @throws NotFoundFailure when there is none */
export async function findSnapshot(berth: Berth, nameOrId: string): Promise<Snapshot> {
  const found = await orUndefined(berth.snapshots.get(nameOrId));
  if (found !== undefined) return found;
  throw new NotFoundFailure(`there is no snapshot ${nameOrId}`, 'see berth snapshot ls');
}

/** Undefined where a call finds nothing. */
export async function orUndefined<T>(found: Promise<T>): Promise<T | undefined> {
  try {
    return await found;
  } catch (error) {
    if (error instanceof NotFoundError) return undefined;
    throw error;
  }
}
