import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import type { Caller } from '../../../shared/directory/api-keys.ts';
import {
  type DiskEntry,
  type DiskRecord,
  sortUsers,
} from '../../../shared/directory/disk-record.ts';
import { AppError } from '../../../shared/errors.ts';
import { newDiskId } from '../../../shared/ids.ts';
import { API_LIMITS } from '../limits.ts';
import { DIRECTORY_LIMITS } from '../../../shared/directory/limits.ts';
import { LIMITS } from '../../../shared/limits.ts';
import type { CreateDisk, RootAttrs } from '../../../shared/schemas/disk.ts';
import { NotTaken } from '../../region/not-taken.ts';
import { hasOpenHost } from '../../region/placement.ts';
import { limitReached } from '../../http/account-limits.ts';
import type { Deps } from '../../region/deps.ts';
import { normaliseAllowedIps } from './allowed-ips.ts';
import { checkAllowedOrigins } from './allowed-origins.ts';
import { callDiskHost, type RequestContext } from '../../region/call-disk-host.ts';
import { haveSameMounts, newMounts } from './buckets.ts';
import { makeDiskUser, type NewDiskUser } from './disk-users.ts';
import { findDisk } from '../../region/find-disk.ts';
import type { Ring } from '../../../shared/secrets.ts';

const CREATION_POLL_MS_MIN = 50;
const CREATION_POLL_MS_MAX = 500;

export interface DiskCreation {
  /** False when a disk with that name and configuration existed already. */
  readonly created: boolean;
  readonly disk: DiskEntry;
  /** New tokens by user identifier; they are shown once. */
  readonly tokens: ReadonlyMap<string, string>;
}

function draftRecord(
  deps: Deps,
  caller: Caller,
  input: CreateDisk,
): { record: DiskRecord; users: NewDiskUser[] } {
  const { encryptionKeys, region } = deps.config.cluster;
  const id = newDiskId();
  const users = newUsers(encryptionKeys, id, input, caller);
  const mounts = newMounts(deps, id, input.mounts);
  return {
    users,
    record: {
      id,
      accountId: caller.accountId,
      organization: caller.organization,
      region,
      name: input.name,
      status: 'creating',
      createdAt: new Date().toISOString(),
      ...(input.rootAttrs === undefined ? {} : { rootAttrs: knownAttributes(input.rootAttrs) }),
      allowedIps: normaliseAllowedIps(input.allowedIps ?? []),
      allowedOrigins: checkAllowedOrigins(input.allowedOrigins ?? []),
      users: sortUsers(users.map((user) => user.record)),
      ...(mounts.length === 0 ? {} : { mounts }),
      revision: 1,
    },
  };
}

/** Drops unknown fields: with them, a repeated call would seem to ask for another configuration. */
const knownAttributes = ({ uid, gid, mode }: RootAttrs): RootAttrs => ({
  ...(uid === undefined ? {} : { uid }),
  ...(gid === undefined ? {} : { gid }),
  ...(mode === undefined ? {} : { mode }),
});

const newUsers = (
  key: Ring<Buffer>,
  diskId: string,
  input: CreateDisk,
  caller: Caller,
): NewDiskUser[] => {
  const given = input.authMethods ?? [{ type: 'token' as const, nickname: 'default' }];
  const users = given.map((user) => makeDiskUser(key, diskId, user, caller));
  // Two with one identifier are one user: the first stays, as when users are added one by one.
  const first = new Map(users.toReversed().map((user) => [keyOf(user), user]));
  return users.filter((user) => first.get(keyOf(user)) === user);
};

/** Tells users apart; both spellings of the role kind are one. */
const keyOf = ({ record: { type, identifier } }: NewDiskUser): string =>
  `${type === 'token'} ${identifier}`;

const sorted = (list: readonly string[]): string[] => [...list].sort();

/** Compares the configuration that a repeated call must match; `authMethods` does not count. */
function isSameConfiguration(a: DiskRecord, b: DiskRecord): boolean {
  return (
    isDeepStrictEqual(a.rootAttrs ?? {}, b.rootAttrs ?? {}) &&
    isDeepStrictEqual(sorted(a.allowedIps), sorted(b.allowedIps)) &&
    isDeepStrictEqual(sorted(a.allowedOrigins), sorted(b.allowedOrigins)) &&
    haveSameMounts(a, b)
  );
}

/**
 * Creates a disk, or finds the one that a repeated call means (docs/api.md, Disks). The name is
 * claimed first; the next call with the same name resumes a creation that was cut off.
 * @throws AppError `bad_request`, `forbidden`, `disk_conflict`, `disk_limit_reached`,
 *   `account_limit_reached`, `no_capacity`, `unavailable`
 */
export async function createDisk(
  deps: Deps,
  caller: Caller,
  input: CreateDisk,
  context: RequestContext,
): Promise<DiskCreation> {
  await checkRegionAccess(deps, caller);
  try {
    return await createOrFind(deps, caller, input, context);
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'not_found') throw error;
    // Deleted by another call, or lost when Redis failed over before a replica had the record.
    const message = 'the disk was lost while it was created; try again';
    throw new AppError('unavailable', message, { cause: error });
  }
}

async function createOrFind(
  deps: Deps,
  caller: Caller,
  input: CreateDisk,
  context: RequestContext,
): Promise<DiskCreation> {
  const { record, users } = draftRecord(deps, caller, input);
  const result = await deps.directory.disks.create(record);
  if (result === 'limit') {
    throw new AppError(
      'disk_limit_reached',
      `the account has ${DIRECTORY_LIMITS.disksPerAccountMax} disks; delete one first`,
    );
  }
  if (result === 'created') return makeData(deps, record, users, context);
  if ('limit' in result) throw limitReached(result);

  const existing = await findDisk(deps, caller.accountId, result.existingId);
  if (!isSameConfiguration(existing.record, record)) {
    throw new AppError(
      'disk_conflict',
      `a disk named ${input.name} exists with another configuration`,
    );
  }
  if (existing.record.status === 'creating') {
    return finishCreation(deps, existing.record, { input, caller }, context);
  }
  return { created: false, disk: existing, tokens: new Map() };
}

/**
 * Another call is creating the disk: waits for it, or continues the creation if it was interrupted.
 */
async function finishCreation(
  deps: Deps,
  record: DiskRecord,
  { input, caller }: { readonly input: CreateDisk; readonly caller: Caller },
  context: RequestContext,
): Promise<DiskCreation> {
  const { disks } = deps.directory;
  const users = newUsers(deps.config.cluster.encryptionKeys, record.id, input, caller);
  const resumed = { ...record, users: sortUsers(users.map((user) => user.record)) };
  const deadline = Date.now() + LIMITS.hostJobTimeoutMs;
  for (let waitMs = CREATION_POLL_MS_MIN; ; waitMs = Math.min(waitMs * 2, CREATION_POLL_MS_MAX)) {
    const state = await disks.resumeCreation(resumed);
    if (state === 'taken') return makeData(deps, resumed, users, context);
    if (state === 'done') {
      const disk = await findDisk(deps, record.accountId, record.id);
      return { created: false, disk, tokens: new Map() };
    }
    if (Date.now() > deadline) {
      throw new AppError('unavailable', 'another request is creating this disk; try again');
    }
    if (context.signal?.aborted === true) throw new AppError('cancelled', 'the caller hung up');
    await sleep(waitMs);
  }
}

async function checkRegionAccess(deps: Deps, { accountId }: Caller): Promise<void> {
  const { regionIsPreview, cluster } = deps.config;
  if (!regionIsPreview) return;
  if (await deps.directory.accounts.hasRegionAccess(accountId, cluster.region)) return;
  throw new AppError(
    'forbidden',
    `preview region ${cluster.region} is not enabled for the account`,
  );
}

async function makeData(
  deps: Deps,
  record: DiskRecord,
  users: readonly NewDiskUser[],
  { requestId }: RequestContext,
): Promise<DiskCreation> {
  try {
    await makeOnSomeHost(deps, record, requestId);
    await deps.directory.disks.markAvailable(record);
  } catch (error) {
    // If this fails as well, other calls may continue the creation once its time is over.
    await deps.directory.disks.releaseCreation(record).catch(() => undefined);
    throw error;
  }
  const tokens = users.flatMap(({ record: user, token }) =>
    token === undefined ? [] : [[user.identifier, token] as const],
  );
  return {
    created: true,
    disk: await findDisk(deps, record.accountId, record.id),
    tokens: new Map(tokens),
  };
}

/**
 * Has a host make the file system; another one, when a host that was about to stop has not begun.
 */
async function makeOnSomeHost(deps: Deps, record: DiskRecord, requestId: string): Promise<void> {
  const payload = { accountId: record.accountId, diskId: record.id };
  const deadlineAt = Date.now() + LIMITS.hostJobTimeoutMs;
  const job = { kind: 'disk.create' as const, payload, deadlineAt };
  const disks = [{ record, usage: {}, clients: [] }];
  const refusing = new Set<string>();
  for (let asked = 1; ; asked += 1) {
    try {
      // Without the caller's signal: a creation continues when the caller hangs up.
      await callDiskHost(deps, disks, job, { requestId }, findDisk, refusing);
      return;
    } catch (error) {
      if (!(error instanceof NotTaken) || asked === API_LIMITS.diskPlacementsMax) throw error;
      refusing.add(error.hostId);
      if (Date.now() >= deadlineAt || !hasOpenHost(deps.hub, refusing)) throw error;
    }
  }
}
