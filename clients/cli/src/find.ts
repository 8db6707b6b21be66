import { type Berth, type Disk, NotFoundError, type Sandbox } from '@berth/sdk';
import { Failure } from './failure.ts';

const SANDBOX_ID = /^[\da-f]{8}-[\da-f]{4}-7[\da-f]{3}-[\da-f]{4}-[\da-f]{12}$/iu;
const DISK_ID = /^dsk-[\da-f]{16}$/u;

/** By name or id. @throws Failure when there is none */
export async function findSandbox(berth: Berth, nameOrId: string): Promise<Sandbox> {
  const found = SANDBOX_ID.test(nameOrId)
    ? await orUndefined(berth.sandboxes.get(nameOrId))
    : await berth.sandboxes.find(nameOrId);
  if (found !== undefined) return found;
  throw new Failure(`there is no sandbox ${nameOrId}`, 'see berth sandbox ls');
}

/** By name or id. @throws Failure when there is none */
export async function findDisk(berth: Berth, nameOrId: string): Promise<Disk> {
  const found = DISK_ID.test(nameOrId)
    ? await orUndefined(berth.disks.get(nameOrId))
    : await berth.disks.find(nameOrId);
  if (found !== undefined) return found;
  throw new Failure(`there is no disk ${nameOrId}`, 'see berth disk ls');
}

async function orUndefined<T>(found: Promise<T>): Promise<T | undefined> {
  try {
    return await found;
  } catch (error) {
    if (error instanceof NotFoundError) return undefined;
    throw error;
  }
}
