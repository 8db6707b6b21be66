import { setTimeout as sleep } from 'node:timers/promises';
import { type HostEntry, isPresent } from '../../../shared/directory/hosts.ts';
import { AppError } from '../../../shared/errors.ts';
import { API_LIMITS } from '../limits.ts';
import { SCHEMA_LIMITS } from '../../../shared/schemas/limits.ts';
import type { HostOrder } from '../../../shared/schemas/host.ts';
import type { Deps } from '../../region/deps.ts';
import { LIMITS } from '../../../shared/limits.ts';

const POLL_MS = 100;

/** @throws AppError `not_found` */
export async function findHostEntry(
  { directory }: Pick<Deps, 'directory'>,
  hostId: string,
): Promise<HostEntry> {
  const entry = await directory.hosts.get(hostId);
  if (entry === undefined) throw noHost(hostId);
  return entry;
}

/**
 * Notes what is wanted of a host, which follows it whenever it is there, restarted or not. Waits a
 * few seconds until it does, so that a caller who has the answer can rely on it.
 * @throws AppError `not_found`
 */
export async function orderHost(deps: Deps, hostId: string, order: HostOrder): Promise<HostEntry> {
  if (!(await deps.directory.hosts.give(hostId, order))) throw noHost(hostId);
  const until = performance.now() + API_LIMITS.hostOrderWaitMsMax;
  for (;;) {
    const entry = await findHostEntry(deps, hostId);
    const isSettled = entry.report.order === entry.order || !isPresent(entry);
    if (isSettled || performance.now() > until) return entry;
    await sleep(POLL_MS);
  }
}

/**
 * Notes that a host which is away is off, so that others may take its sandboxes.
 * @throws AppError `not_found`, `host_in_use` unless it is away
 */
export async function fenceHost(deps: Deps, hostId: string): Promise<HostEntry> {
  const entry = await findAwayHost(deps, hostId);
  if (!(await deps.directory.hosts.fence(hostId, entry.report))) throw noHost(hostId);
  return findHostEntry(deps, hostId);
}

async function findAwayHost(deps: Pick<Deps, 'directory'>, hostId: string): Promise<HostEntry> {
  const entry = await findHostEntry(deps, hostId);
  if (!isPresent(entry)) return entry;
  const message = `${hostId} was heard of seconds ago: stop its agent, and try again in ${LIMITS.hostTtlMs / 1000} s`;
  throw new AppError('host_in_use', message);
}

/**
 * Removes a host that will not come back: its sandboxes and snapshots are gone with it, and its
 * disks are free for the others; an agent with its id is refused. May be repeated after it was cut
 * off: the host goes last.
 * @throws AppError `not_found`, `host_in_use` unless it is away
 */
export async function removeHost(
  deps: Pick<Deps, 'directory' | 'hub'>,
  hostId: string,
): Promise<void> {
  const { directory } = deps;
  await findAwayHost(deps, hostId);
  for (const { id } of await directory.accounts.list()) await removeWorkOf(deps, id, hostId);
  await directory.sandboxCapacity.forget(hostId);
  await directory.hosts.remove(hostId);
  deps.hub.drop(hostId);
}

async function removeWorkOf(
  { directory: { sandboxes, snapshots, disks, diskLeases } }: Pick<Deps, 'directory'>,
  accountId: string,
  hostId: string,
): Promise<void> {
  for (const record of await sandboxes.list(accountId)) {
    if (record.hostId !== hostId) continue;
    const named = { accountId, sandboxId: record.id, name: record.config.name };
    // Another host may have taken it since the list was read.
    await sandboxes.remove(named, record.revision);
  }
  for await (const record of everyPage((page) => snapshots.list(accountId, page))) {
    if (record.hostId === hostId) await snapshots.remove(record);
  }
  for await (const { record, leaseHolder, isHeld } of everyPage((page) =>
    disks.list(accountId, page),
  )) {
    if (leaseHolder !== hostId || isHeld !== true) continue;
    await diskLeases.breakHold({ accountId, diskId: record.id }, hostId);
  }
}

async function* everyPage<T>(
  read: (page: { limit: number; cursor?: string }) => Promise<{ items: T[]; nextCursor?: string }>,
): AsyncGenerator<T> {
  let cursor: string | undefined;
  do {
    const page = await read({
      limit: SCHEMA_LIMITS.pageSizeMax,
      ...(cursor === undefined ? {} : { cursor }),
    });
    yield* page.items;
    cursor = page.nextCursor;
  } while (cursor !== undefined);
}

const noHost = (hostId: string): AppError =>
  new AppError('not_found', `there is no host ${hostId}`);
