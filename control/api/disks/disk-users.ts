import { type Caller, endWithKey } from '../../../shared/directory/api-keys.ts';
import type { DiskRecord, DiskUserRecord } from '../../../shared/directory/disk-record.ts';
import { AppError } from '../../../shared/errors.ts';
import type { DiskUserInput } from '../../../shared/schemas/disk-user.ts';
import { randomSecret, type Ring, seal, sha256 } from '../../../shared/secrets.ts';
import type { Deps } from '../../region/deps.ts';
import type { RequestContext } from '../../region/call-disk-host.ts';
import { parseEnd, parseTtl } from '../../http/credential-ends.ts';
import { findDisk } from '../../region/find-disk.ts';
import { recordDisk } from './record-disk.ts';

const IDENTIFIER_LENGTH = 32;

/** A user to be stored and, for the token kind, the token that is shown once. */
export interface NewDiskUser {
  readonly record: DiskUserRecord;
  readonly token?: string;
}

const newDiskToken = (): string => `dt-${randomSecret()}`;

function checkChosenToken(token: string, suffix: string | undefined): void {
  if (token.startsWith('key-')) {
    throw new AppError('bad_request', 'principal is an API key; a disk token is asked for here');
  }
  if (suffix === undefined || !token.endsWith(suffix)) {
    throw new AppError('bad_request', 'tokenSuffix must be the last 4 characters of principal');
  }
}

/** When the caller wants the user's credentials to end. @throws AppError `bad_request` */
function endWanted({ ttl, expiresAt }: DiskUserInput): number | undefined {
  if (ttl !== undefined && expiresAt !== undefined) {
    throw new AppError('bad_request', 'body: give ttl or expiresAt, not both');
  }
  if (ttl !== undefined) return Date.now() + parseTtl(ttl);
  return expiresAt === undefined ? undefined : parseEnd(expiresAt);
}

/**
 * A user whose credentials last as long as the caller's key at most.
 * @throws AppError `bad_request` when the token chosen by the caller does not fit, or its end is
 *   none
 */
export function makeDiskUser(
  encryptionKeys: Ring<Buffer>,
  diskId: string,
  input: DiskUserInput,
  caller: Pick<Caller, 'endsAt'>,
): NewDiskUser {
  const endsAt = endWithKey(caller, endWanted(input));
  const times = {
    createdAt: new Date().toISOString(),
    ...(endsAt === undefined ? {} : { expiresAt: new Date(endsAt).toISOString() }),
  };
  if (input.type !== 'token') {
    const { type, principal } = input;
    return { record: { type, principal, identifier: principal, ...times } };
  }
  if (input.principal !== undefined) checkChosenToken(input.principal, input.tokenSuffix);
  const token = input.principal ?? newDiskToken();
  return {
    token,
    record: {
      type: 'token',
      nickname: input.nickname,
      tokenSuffix: token.slice(-4),
      identifier: sha256(token).slice(0, IDENTIFIER_LENGTH),
      ...times,
      sealedToken: seal(encryptionKeys, token, diskId),
    },
  };
}

/**
 * Adds a user to a disk (docs/api.md, Disk users). A user that is there already is returned as it
 * is, with another end if the caller asks for one.
 */
export async function addDiskUser(
  deps: Deps,
  disk: { accountId: string; diskId: string; caller: Caller },
  input: DiskUserInput,
  context: RequestContext,
): Promise<NewDiskUser> {
  const entry = await findDisk(deps, disk.accountId, disk.diskId);
  const user = makeDiskUser(deps.config.cluster.encryptionKeys, disk.diskId, input, disk.caller);
  const present = await deps.directory.disks.addUser(entry.record, user.record);
  if (present === 'missing') throw new AppError('not_found', `disk ${disk.diskId} not found`);
  if (present === 'limit') throw new AppError('bad_request', 'the disk has too many users');
  const isNew = present.createdAt === user.record.createdAt;
  const asksForEnd = input.ttl !== undefined || input.expiresAt !== undefined;
  const stored =
    isNew || !asksForEnd
      ? present
      : await setEnd(deps, entry.record, present, user.record.expiresAt);
  try {
    await recordDisk(deps, disk, context);
  } catch (error) {
    // The token can never be shown, so the user would be of no use to anybody.
    if (isNew) {
      await deps.directory.disks.removeUser(entry.record, user.record).catch(() => undefined);
    }
    throw error;
  }
  return { ...user, record: stored };
}

/** @throws AppError `unavailable` when another call has changed or removed the user meanwhile */
async function setEnd(
  { directory }: Deps,
  disk: DiskRecord,
  present: DiskUserRecord,
  expiresAt: string | undefined,
): Promise<DiskUserRecord> {
  if (expiresAt === undefined || expiresAt === present.expiresAt) return present;
  const next = { ...present, expiresAt };
  if (await directory.disks.replaceUser(disk, present, next)) return next;
  throw new AppError('unavailable', 'another request changed this user; try again');
}

/**
 * Removes a user at once; then the manifest learns of it, so that rebuilding the directory cannot
 * bring the user back.
 * @throws AppError `bad_request` when the disk has no such user (docs/api.md, Choices)
 */
export async function removeDiskUser(
  deps: Deps,
  disk: { accountId: string; diskId: string },
  user: { type: string; identifier: string },
  context: RequestContext,
): Promise<void> {
  const entry = await findDisk(deps, disk.accountId, disk.diskId);
  const result = await deps.directory.disks.removeUser(entry.record, user);
  if (result === 'missing') throw new AppError('not_found', `disk ${disk.diskId} not found`);
  // Also for an unknown user: the call may repeat one whose second half failed.
  await recordDisk(deps, disk, context);
  if (result === 'unknown') {
    throw new AppError('bad_request', `the disk has no ${user.type} user with this identifier`);
  }
}
