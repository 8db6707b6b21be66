import type { RedisClient } from './redis-client.ts';
import { parseJson } from '../json.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { SCHEMA_LIMITS } from '../schemas/limits.ts';
import type { BucketStatus, StoredBucket } from '../schemas/disk-bucket.ts';
import { type LimitReached, readLimitReached } from './account-limits.ts';
import { clientsOf, recordClient } from './disk-clients.ts';
import { DiskDeletions } from './disk-deletions.ts';
import { DiskOrigins } from './disk-origins.ts';
import {
  type DiskEntry,
  type DiskRecord,
  type DiskUserRecord,
  isInForce,
  readDisk,
} from './disk-record.ts';
import * as scripts from './disk-scripts.ts';
import { type DiskRef, DiskUserIndex } from './disk-user-index.ts';
import { keys } from './keys.ts';
import { SharedReads } from '../shared-reads.ts';
import { orderedMember, type Page, type PageRequest, readPage } from './page.ts';

/** Uses of a disk since they were last written, and what was measured after the last of them. */
export interface DiskUses {
  /** When the last of them ended, RFC 3339. */
  readonly at: string;
  /** Undefined when the disk could not be measured. */
  readonly usedBytes: number | undefined;
  readonly requests: number;
  /** Milliseconds of all of them together. */
  readonly requestMs: number;
}

const userField = (user: { type: string; identifier: string }): string =>
  `${user.type === 'token' ? 'token' : 'sts'}:${user.identifier}`;

const userPairs = (users: readonly DiskUserRecord[]): string =>
  JSON.stringify(users.flatMap((user) => [userField(user), JSON.stringify(user)]));

// Not validated: only this code writes the directory.
const toUser = (text: unknown): DiskUserRecord => parseJson(String(text)) as DiskUserRecord;

/** The disks of one region. */
export class Disks {
  readonly #redis: RedisClient;
  readonly #userIndex: DiskUserIndex;
  readonly #origins: DiskOrigins;
  /** Many calls at once are about the same disk. */
  readonly #reads = new SharedReads<DiskEntry | undefined>();
  readonly #originReads = new SharedReads<readonly string[]>();
  readonly region: string;
  readonly deletions: DiskDeletions;

  constructor(redis: RedisClient, region: string) {
    this.#redis = redis;
    this.#userIndex = new DiskUserIndex(redis, region);
    this.#origins = new DiskOrigins(redis, region);
    this.deletions = new DiskDeletions(redis, region);
    this.region = region;
  }

  /**
   * Claims the name and writes the record.
   * @returns the id of the disk that has the name, if any
   */
  async create(
    record: DiskRecord,
  ): Promise<'created' | 'limit' | LimitReached | { existingId: string }> {
    const { accountId, id, name } = record;
    await this.#userIndex.add(record, record.users);
    await this.#origins.note(record, record.allowedOrigins);
    const fields = Object.entries({
      id,
      name,
      organization: record.organization,
      region: record.region,
      status: record.status,
      createdAt: record.createdAt,
      allowedIps: JSON.stringify(record.allowedIps),
      allowedOrigins: JSON.stringify(record.allowedOrigins),
      ...(record.rootAttrs === undefined ? {} : { rootAttrs: JSON.stringify(record.rootAttrs) }),
      ...(record.mounts === undefined ? {} : { mounts: JSON.stringify(record.mounts) }),
      revision: String(record.revision),
      creatingUntil: String(Date.now() + DIRECTORY_LIMITS.diskCreationMsMax),
    }).flat();
    const result = await scripts.create.run(
      this.#redis,
      [
        keys.diskNames(this.region, accountId),
        keys.disks(this.region, accountId),
        keys.disk(this.region, accountId, id),
        keys.diskUsers(this.region, accountId, id),
        keys.accountLimits(accountId),
      ],
      [
        name,
        id,
        orderedMember(record.createdAt, id),
        DIRECTORY_LIMITS.disksPerAccountMax,
        JSON.stringify(fields),
        userPairs(record.users),
        keys.disk(this.region, accountId, ''),
      ],
    );
    if (result === id) return 'created';
    await this.#userIndex.remove(record, record.users);
    await this.#origins.forget(record);
    if (result === 'limit') return 'limit';
    return readLimitReached(result) ?? { existingId: String(result) };
  }

  /**
   * Resumes a creation whose caller was cut off. The users in `record` replace the first ones,
   * whose tokens nobody has seen. Costs one small read while the creation cannot be taken.
   * @returns `busy` while another caller is creating the disk, `done` when it is no longer
   *   `creating`
   */
  async resumeCreation(record: DiskRecord): Promise<'taken' | 'busy' | 'done'> {
    const [key = '', users = ''] = this.#diskAndUsers(record);
    const [status, busyUntil] = await this.#redis.hmget(key, 'status', 'creatingUntil');
    if (status !== 'creating') return 'done';
    const now = Date.now();
    if (Number(busyUntil) > now) return 'busy';
    const until = now + DIRECTORY_LIMITS.diskCreationMsMax;
    const former = await scripts.takeCreation.run(this.#redis, [key, users], [now, until]);
    if (!Array.isArray(former)) return former === 'busy' ? 'busy' : 'done';
    // Only now: calls that wait leave nothing in the index, and remove no entries of each other.
    await this.#userIndex.remove(record, former.map(toUser));
    await this.#userIndex.add(record, record.users);
    const args = [until, userPairs(record.users)];
    const isMine = await scripts.setUsersOfCreation.run(this.#redis, [key, users], args);
    return isMine === 1 ? 'taken' : 'busy';
  }

  /** Releases a creation that failed, so that the next caller can resume it at once. */
  async releaseCreation(disk: { accountId: string; id: string }): Promise<void> {
    await scripts.releaseCreation.run(this.#redis, this.#diskAndUsers(disk).slice(0, 1), []);
  }

  async markAvailable(disk: { accountId: string; id: string }): Promise<void> {
    await scripts.markAvailable.run(this.#redis, this.#diskAndUsers(disk).slice(0, 1), []);
  }

  async get(accountId: string, diskId: string): Promise<DiskEntry | undefined> {
    const disk = { region: this.region, accountId, diskId };
    return this.#reads.read(`${accountId} ${diskId}`, () => readDisk(this.#redis, disk));
  }

  async findByName(accountId: string, name: string): Promise<DiskEntry | undefined> {
    const diskId = await this.#redis.hget(keys.diskNames(this.region, accountId), name);
    return diskId === null ? undefined : this.get(accountId, diskId);
  }

  async list(accountId: string, request: PageRequest): Promise<Page<DiskEntry>> {
    const page = await readPage(this.#redis, keys.disks(this.region, accountId), request);
    const entries = await Promise.all(page.items.map((diskId) => this.get(accountId, diskId)));
    return { ...page, items: entries.filter((entry) => entry !== undefined) };
  }

  /**
   * Adds the user, or returns the one that has this identifier already. Users of the disk that have
   * ended are removed, and make room.
   */
  async addUser(
    disk: Pick<DiskRecord, 'accountId' | 'id' | 'users'>,
    user: DiskUserRecord,
  ): Promise<DiskUserRecord | 'missing' | 'limit'> {
    const ended = disk.users.filter((each) => !isInForce(each));
    await this.#userIndex.add(disk, [user]);
    const result = await scripts.addUser.run(this.#redis, this.#diskAndUsers(disk), [
      ...[userField(user), JSON.stringify(user), SCHEMA_LIMITS.usersPerDiskMax],
      ...ended.flatMap((each) => [
        ...[userField(each), JSON.stringify(each), clientsOf(each.identifier)],
      ]),
    ]);
    if (result === 'missing' || result === 'limit') {
      await this.#forgetUsers(disk, [user]);
      return result;
    }
    await this.#forgetUsers(disk, ended);
    // Again: a call that removed a user of this identifier may have removed the entry in between.
    await this.#userIndex.add(disk, [user]);
    return toUser(result);
  }

  async removeUser(
    disk: { accountId: string; id: string },
    user: { type: string; identifier: string },
  ): Promise<'removed' | 'unknown' | 'missing'> {
    const result = await scripts.removeUser.run(this.#redis, this.#diskAndUsers(disk), [
      userField(user),
      clientsOf(user.identifier),
    ]);
    if (result === 'missing') return 'missing';
    await this.#forgetUsers(disk, [user]);
    return result === 1 ? 'removed' : 'unknown';
  }

  /** Removes users from the index, but those that the disk has: another call may have added one. */
  async #forgetUsers(
    disk: { accountId: string; id: string },
    users: readonly { readonly identifier: string }[],
  ): Promise<void> {
    await this.#userIndex.remove(disk, users);
    const present = await Promise.all(
      users.map(({ identifier }) => this.tokenUser(disk, identifier)),
    );
    await this.#userIndex.add(
      disk,
      present.filter((user) => user !== undefined),
    );
  }

  /** @returns false when there is no such disk */
  setAllowedIps(
    disk: { accountId: string; id: string },
    allowedIps: readonly string[],
  ): Promise<boolean> {
    return this.#setSetting(disk, 'allowedIps', allowedIps);
  }

  /** @returns false when there is no such disk */
  async setAllowedOrigins(
    disk: { accountId: string; id: string },
    allowedOrigins: readonly string[],
  ): Promise<boolean> {
    await this.#origins.note(disk, allowedOrigins);
    return this.#setSetting(disk, 'allowedOrigins', allowedOrigins);
  }

  /** The allowed origins of a disk whose account is not known; none when there is no such disk. */
  allowedOriginsOf(diskId: string): Promise<readonly string[]> {
    return this.#originReads.read(diskId, () => this.#origins.of(diskId));
  }

  async #setSetting(
    disk: { accountId: string; id: string },
    field: 'allowedIps' | 'allowedOrigins',
    values: readonly string[],
  ): Promise<boolean> {
    const key = keys.disk(this.region, disk.accountId, disk.id);
    const value = JSON.stringify(values);
    return (await scripts.setSetting.run(this.#redis, [key], [field, value])) === 1;
  }

  /**
   * Replaces the mounts of a disk; whoever uses it reads them anew.
   * @returns false: no such disk
   */
  async setMounts(
    disk: { accountId: string; id: string },
    mounts: readonly StoredBucket[],
  ): Promise<boolean> {
    const [key = ''] = this.#diskAndUsers(disk);
    const result = await scripts.setMounts.run(this.#redis, [key], [JSON.stringify(mounts)]);
    return result === 1;
  }

  /** Records what was found out about a disk's object storage; no error when the disk is gone. */
  async recordBucketStatus(
    disk: { accountId: string; id: string },
    status: BucketStatus,
  ): Promise<void> {
    const [key = ''] = this.#diskAndUsers(disk);
    await scripts.recordBucketStatus.run(this.#redis, [key], [JSON.stringify(status)]);
  }

  /** Replaces a user's record. @returns false when it is not as it was any more */
  async replaceUser(
    disk: { accountId: string; id: string },
    former: DiskUserRecord,
    next: DiskUserRecord,
  ): Promise<boolean> {
    const [key = '', users = ''] = this.#diskAndUsers(disk);
    const args = [userField(former), JSON.stringify(former), JSON.stringify(next)];
    return (await scripts.replaceField.run(this.#redis, [users, key], args)) === 1;
  }

  /**
   * Like {@link setMounts}, but returns false when the mounts have changed meanwhile. then it
   * returns false.
   */
  async replaceMounts(
    disk: { accountId: string; id: string },
    former: readonly StoredBucket[],
    next: readonly StoredBucket[],
  ): Promise<boolean> {
    const [key = ''] = this.#diskAndUsers(disk);
    const args = ['mounts', JSON.stringify(former), JSON.stringify(next)];
    return (await scripts.replaceField.run(this.#redis, [key, key], args)) === 1;
  }

  /**
   * Hides the disk and frees its name. Delete its data after this, then call {@link remove}.
   * @returns `held` when a sandbox mounts it; nothing has changed then
   */
  async beginDelete(record: DiskRecord): Promise<'begun' | 'missing' | 'held'> {
    const { accountId, id } = record;
    await this.deletions.note(record);
    const result = await scripts.beginDelete.run(
      this.#redis,
      [
        keys.diskNames(this.region, accountId),
        keys.disks(this.region, accountId),
        keys.disk(this.region, accountId, id),
        keys.diskLease(this.region, accountId, id),
      ],
      [id, orderedMember(record.createdAt, id)],
    );
    if (result === 'held') {
      await this.deletions.forget(record);
      return 'held';
    }
    return result === 1 ? 'begun' : 'missing';
  }

  async remove(disk: DiskRecord): Promise<void> {
    await this.#userIndex.remove(disk, disk.users);
    await this.#origins.forget(disk);
    await this.#redis.del(
      ...this.#diskAndUsers(disk),
      keys.diskEpoch(this.region, disk.accountId, disk.id),
      keys.diskAttached(this.region, disk.accountId, disk.id),
    );
    await this.deletions.forget(disk);
  }

  /** Adds uses to the disk's figures; no error when the disk is gone. */
  async recordUses(disk: { accountId: string; id: string }, uses: DiskUses): Promise<void> {
    await scripts.recordUses.run(this.#redis, this.#diskAndUsers(disk).slice(0, 1), [
      uses.at,
      uses.usedBytes ?? '',
      uses.requests,
      Math.round(uses.requestMs),
    ]);
  }

  /** The disks that may have this token user. Only their records say whether they do. */
  async ofTokenUser(identifier: string): Promise<DiskRef[]> {
    return this.#userIndex.find(identifier);
  }

  /**
   * Forgets, until it is renewed, that a disk has a token user who has ended: for others who look
   * for the user.
   */
  async forgetEnded(disk: DiskRef, identifier: string): Promise<void> {
    await this.#userIndex.remove(disk, [{ identifier }]);
  }

  /** A token user of a disk, read without the rest of the disk's record. */
  async tokenUser(
    { accountId, id }: DiskRef,
    identifier: string,
  ): Promise<DiskUserRecord | undefined> {
    const field = userField({ type: 'token', identifier });
    const text = await this.#redis.hget(keys.diskUsers(this.region, accountId, id), field);
    return text === null ? undefined : toUser(text);
  }

  /** Records that a user's client was seen, for `connectedClients`. */
  async recordClient(
    disk: { accountId: string; id: string },
    client: { identifier: string; ipAddress: string },
  ): Promise<void> {
    const key = keys.disk(this.region, disk.accountId, disk.id);
    await recordClient(this.#redis, key, client);
  }

  #diskAndUsers(disk: { accountId: string; id: string }): string[] {
    return [
      keys.disk(this.region, disk.accountId, disk.id),
      keys.diskUsers(this.region, disk.accountId, disk.id),
    ];
  }
}
