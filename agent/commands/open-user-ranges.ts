import { chmod, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { toError } from '../../shared/errors.ts';
import { newJobId } from '../../shared/ids.ts';
import type { Logger } from '../../shared/log.ts';
import { Container, type ContainerHost } from './container.ts';
import { type IdRange, UserRanges } from '../machines/oci/container-users.ts';

export interface UserRangeSettings {
  /** `auto`: if the kernel supports it; `on`: the agent does not start unless it does. */
  readonly mode: 'auto' | 'on' | 'off';
  /** The first id on the host that is used for containers. */
  readonly baseId: number;
  /** Ids on the host that no container may use. */
  readonly reserved: readonly IdRange[];
}

/**
 * Lets the users of containers, who have no rights on the host, pass the data directory, and closes
 * everything in it. Later a driver opens its own directory there for the containers of sandboxes.
 */
async function letThrough(dataDir: string): Promise<void> {
  for (const entry of await readdir(dataDir, { withFileTypes: true })) {
    const path = join(dataDir, entry.name);
    if (entry.isDirectory()) await chmod(path, 0o700);
    else if (entry.isFile()) await chmod(path, 0o600);
  }
  await chmod(dataDir, 0o711);
}

/** Starts one container, which shows whether kernel, runc and file systems support user ranges. */
async function probe(host: ContainerHost): Promise<void> {
  const container = new Container(host, newJobId());
  await container.start();
  await container.kill();
  await container.gone;
}

/**
 * Finds out whether containers on this host can have users of their own.
 * @returns undefined when root inside has to be root of the host
 * @throws Error when they cannot but must
 */
export async function openUserRanges(
  { mode, baseId, reserved }: UserRangeSettings,
  dataDir: string,
  host: Omit<ContainerHost, 'userRanges'>,
  log: Logger,
): Promise<UserRanges | undefined> {
  if (mode === 'off') return undefined;
  const userRanges = new UserRanges(baseId, reserved);
  try {
    await letThrough(dataDir);
    await probe({ ...host, userRanges });
    return userRanges;
  } catch (error) {
    const reason = 'containers cannot have users of their own; see EXEC_USER_NAMESPACES';
    if (mode === 'on') throw new Error(reason, { cause: error });
    log.warn({ err: toError(error) }, 'containers:usersShared');
    return undefined;
  }
}
