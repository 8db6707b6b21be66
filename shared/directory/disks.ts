import type { ChainableCommander, Redis } from 'ioredis';
import { LIMITS } from '../limits.ts';
import type { DiskStatus, RootAttrs } from '../schemas/disk.ts';
import type { AuthorizedUser } from '../schemas/disk-user.ts';
import { DiskDeletions } from './disk-deletions.ts';
import { clientsOf, type DiskClient, recordClient, toClients } from './disk-clients.ts';
import { leaseHolder } from './disk-leases.ts';
import { DiskUserIndex } from './disk-user-index.ts';
import { keys } from './keys.ts';
import { orderedMember, type Page, type PageRequest, readPage } from './page.ts';
import { Script } from './script.ts';
import { parseJson } from '../json.ts';

/** A disk user as stored; the token of a `token` user is sealed. */
export interface DiskUserRecord extends Omit<AuthorizedUser, 'token'> {
  readonly sealedToken?: string;
}

/** The record of a disk. Its manifest repeats all of it, so that it can be rebuilt from there. */
export interface DiskRecord {
  readonly id: string;
  readonly accountId: string;
  readonly organization: string;
  readonly region: string;
  readonly name: string;
  readonly status: DiskStatus;
  readonly createdAt: string;
  readonly rootAttrs?: RootAttrs;
  readonly allowedIps: readonly string[];
  readonly users: readonly DiskUserRecord[];
  /** Grows with every change of the record; the manifest with the highest revision wins. */
  readonly revision: number;
}

/** Measured usage; each figure is absent until it was measured once. */
export interface DiskUsage {
  readonly lastAccessed?: string;
  readonly usedBytes?: number;
  readonly requests?: number;
  readonly requestMsTotal?: number;
}

export interface DiskEntry {
  readonly record: DiskRecord;
  readonly usage: DiskUsage;
  readonly clients: readonly DiskClient[];
  /** The host that has the disk's lease. */
  readonly handler?: string;
}

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

// KEYS names, list, disk, users; ARGV name, id, member, limit, record fields as JSON, users as JSON
const create = new Script(`
  local taken = redis.call('HGET', KEYS[1], ARGV[1])
  if taken then return taken end
  if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[4]) then return 'limit' end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('ZADD', KEYS[2], 0, ARGV[3])
  redis.call('HSET', KEYS[3], unpack(cjson.decode(ARGV[5])))
  redis.call('DEL', KEYS[4])
  local users = cjson.decode(ARGV[6])
  if #users > 0 then redis.call('HSET', KEYS[4], unpack(users)) end
  return ARGV[2]
`);
// KEYS disk, users; ARGV now, until, users as JSON. The resumed creation gets new users, because the
// tokens of the first ones were shown to nobody.
const resumeCreation = new Script(`
  if redis.call('HGET', KEYS[1], 'status') ~= 'creating' then return 'done' end
  local busyUntil = redis.call('HGET', KEYS[1], 'creatingUntil')
  if tonumber(busyUntil) > tonumber(ARGV[1]) then return 'busy' end
  redis.call('HSET', KEYS[1], 'creatingUntil', ARGV[2])
  redis.call('DEL', KEYS[2])
  local users = cjson.decode(ARGV[3])
  if #users > 0 then redis.call('HSET', KEYS[2], unpack(users)) end
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
  return 'taken'
`);
const releaseCreation = new Script(`
  if redis.call('HGET', KEYS[1], 'status') ~= 'creating' then return 0 end
  redis.call('HSET', KEYS[1], 'creatingUntil', 0)
  return 1
`);
const markAvailable = new Script(`
  if redis.call('HGET', KEYS[1], 'status') ~= 'creating' then return 0 end
  redis.call('HSET', KEYS[1], 'status', 'available')
  return 1
`);
// KEYS disk, users; ARGV field, user JSON, limit
const addUser = new Script(`
  if redis.call('HGET', KEYS[1], 'status') ~= 'available' then return 'missing' end
  local present = redis.call('HGET', KEYS[2], ARGV[1])
  if present then return present end
  if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[3]) then return 'limit' end
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
  return ARGV[2]
`);
// KEYS disk, users; ARGV field, prefix of the fields of the user's clients
const removeUser = new Script(`
  if redis.call('HGET', KEYS[1], 'status') ~= 'available' then return 'missing' end
  local removed = redis.call('HDEL', KEYS[2], ARGV[1])
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, #ARGV[2]) == ARGV[2] then redis.call('HDEL', KEYS[1], field) end
  end
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
  return removed
`);
const setAllowedIps = new Script(`
  if redis.call('HGET', KEYS[1], 'status') ~= 'available' then return 0 end
  redis.call('HSET', KEYS[1], 'allowedIps', ARGV[1])
  redis.call('HINCRBY', KEYS[1], 'revision', 1)
  return 1
`);
// KEYS names, list, disk; ARGV id, member. The name is free again at once.
const beginDelete = new Script(`
  local name = redis.call('HGET', KEYS[3], 'name')
  if not name then return 0 end
  redis.call('HSET', KEYS[3], 'status', 'deleting')
  redis.call('ZREM', KEYS[2], ARGV[2])
  if redis.call('HGET', KEYS[1], name) == ARGV[1] then redis.call('HDEL', KEYS[1], name) end
  return 1
`);
// KEYS disk; ARGV at, used bytes or empty, requests, milliseconds. Hosts may write in another order
// than they had the disk: the figures of the latest use stay.
const recordUses = new Script(`
  if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  local last = redis.call('HGET', KEYS[1], 'lastAccessed')
  if not last or last <= ARGV[1] then
    redis.call('HSET', KEYS[1], 'lastAccessed', ARGV[1])
    if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], 'usedBytes', ARGV[2]) end
  end
  redis.call('HINCRBY', KEYS[1], 'requests', ARGV[3])
  redis.call('HINCRBY', KEYS[1], 'requestMsTotal', ARGV[4])
  return 1
`);

const userField = (user: { type: string; identifier: string }): string =>
  `${user.type === 'token' ? 'token' : 'sts'}:${user.identifier}`;

const userPairs = (users: readonly DiskUserRecord[]): string =>
  JSON.stringify(users.flatMap((user) => [userField(user), JSON.stringify(user)]));

// Not validated: only this code writes the directory. The manifest, which others can edit, is.
const parse = <T>(text: string): T => parseJson(text) as T;

function toRecord(
  accountId: string,
  fields: Record<string, string>,
  users: Record<string, string>,
): DiskRecord | undefined {
  const { id, organization, region, name, status, createdAt, allowedIps, rootAttrs } = fields;
  if (id === undefined || organization === undefined || region === undefined) return undefined;
  if (name === undefined || status === undefined || createdAt === undefined) return undefined;
  return {
    id,
    accountId,
    organization,
    region,
    name,
    status: status as DiskStatus,
    createdAt,
    ...(rootAttrs === undefined ? {} : { rootAttrs: parse<RootAttrs>(rootAttrs) }),
    allowedIps: parse<string[]>(allowedIps ?? '[]'),
    users: Object.values(users)
      .map((text) => parse<DiskUserRecord>(text))
      .sort((a, b) => (a.createdAt < b.createdAt ? -1 : 1)),
    revision: Number(fields['revision'] ?? '1'),
  };
}

function toUsage(fields: Record<string, string>): DiskUsage {
  const { lastAccessed, usedBytes, requests, requestMsTotal } = fields;
  return {
    ...(lastAccessed === undefined ? {} : { lastAccessed }),
    ...(usedBytes === undefined ? {} : { usedBytes: Number(usedBytes) }),
    ...(requests === undefined ? {} : { requests: Number(requests) }),
    ...(requestMsTotal === undefined ? {} : { requestMsTotal: Number(requestMsTotal) }),
  };
}

/** The disks of one region. */
export class Disks {
  readonly #redis: Redis;
  readonly #userIndex: DiskUserIndex;
  readonly region: string;
  readonly deletions: DiskDeletions;

  constructor(redis: Redis, region: string) {
    this.#redis = redis;
    this.#userIndex = new DiskUserIndex(redis, region);
    this.deletions = new DiskDeletions(redis, region);
    this.region = region;
  }

  /** Claims the name and writes the record. @returns the id of the disk that has the name, if any */
  async create(record: DiskRecord): Promise<'created' | 'limit' | { existingId: string }> {
    const { accountId, id, name } = record;
    await this.#userIndex.add(record, record.users);
    const fields = Object.entries({
      id,
      name,
      organization: record.organization,
      region: record.region,
      status: record.status,
      createdAt: record.createdAt,
      allowedIps: JSON.stringify(record.allowedIps),
      ...(record.rootAttrs === undefined ? {} : { rootAttrs: JSON.stringify(record.rootAttrs) }),
      revision: String(record.revision),
      creatingUntil: String(Date.now() + LIMITS.diskCreationMsMax),
    }).flat();
    const result = await create.run(
      this.#redis,
      [
        keys.diskNames(this.region, accountId),
        keys.disks(this.region, accountId),
        keys.disk(this.region, accountId, id),
        keys.diskUsers(this.region, accountId, id),
      ],
      [
        name,
        id,
        orderedMember(record.createdAt, id),
        LIMITS.disksPerAccountMax,
        JSON.stringify(fields),
        userPairs(record.users),
      ],
    );
    if (result === id) return 'created';
    await this.#userIndex.remove(record, record.users);
    return result === 'limit' ? 'limit' : { existingId: String(result) };
  }

  /**
   * Resumes a creation whose caller was cut off. The users in `record` replace the first ones, whose
   * tokens nobody has seen.
   * @returns `busy` while another caller is creating the disk, `done` when it is no longer `creating`
   */
  async resumeCreation(record: DiskRecord): Promise<'taken' | 'busy' | 'done'> {
    const now = Date.now();
    await this.#userIndex.add(record, record.users);
    const result = await resumeCreation.run(this.#redis, this.#diskAndUsers(record), [
      now,
      now + LIMITS.diskCreationMsMax,
      userPairs(record.users),
    ]);
    return result === 'taken' || result === 'busy' ? result : 'done';
  }

  /** Releases a creation that failed, so that the next caller can resume it at once. */
  async releaseCreation(disk: { accountId: string; id: string }): Promise<void> {
    await releaseCreation.run(this.#redis, this.#diskAndUsers(disk).slice(0, 1), []);
  }

  async markAvailable(disk: { accountId: string; id: string }): Promise<void> {
    await markAvailable.run(this.#redis, this.#diskAndUsers(disk).slice(0, 1), []);
  }

  async get(accountId: string, diskId: string): Promise<DiskEntry | undefined> {
    const pipeline = this.#redis.pipeline();
    this.#queueRead(pipeline, accountId, diskId);
    return readEntries(accountId, await pipeline.exec())[0];
  }

  async findByName(accountId: string, name: string): Promise<DiskEntry | undefined> {
    const diskId = await this.#redis.hget(keys.diskNames(this.region, accountId), name);
    return diskId === null ? undefined : this.get(accountId, diskId);
  }

  async list(accountId: string, request: PageRequest): Promise<Page<DiskEntry>> {
    const page = await readPage(this.#redis, keys.disks(this.region, accountId), request);
    const pipeline = this.#redis.pipeline();
    for (const diskId of page.items) this.#queueRead(pipeline, accountId, diskId);
    const entries = readEntries(accountId, await pipeline.exec());
    return { ...page, items: entries.filter((entry) => entry !== undefined) };
  }

  /** Adds the user, or returns the one that already has this identifier. */
  async addUser(
    disk: { accountId: string; id: string },
    user: DiskUserRecord,
  ): Promise<DiskUserRecord | 'missing' | 'limit'> {
    await this.#userIndex.add(disk, [user]);
    const result = await addUser.run(this.#redis, this.#diskAndUsers(disk), [
      userField(user),
      JSON.stringify(user),
      LIMITS.usersPerDiskMax,
    ]);
    if (result === 'missing' || result === 'limit') {
      await this.#userIndex.remove(disk, [user]);
      return result;
    }
    return parse<DiskUserRecord>(String(result));
  }

  async removeUser(
    disk: { accountId: string; id: string },
    user: { type: string; identifier: string },
  ): Promise<'removed' | 'unknown' | 'missing'> {
    const result = await removeUser.run(this.#redis, this.#diskAndUsers(disk), [
      userField(user),
      clientsOf(user.identifier),
    ]);
    if (result === 'missing') return 'missing';
    await this.#userIndex.remove(disk, [user]);
    return result === 1 ? 'removed' : 'unknown';
  }

  /** @returns false when there is no such disk */
  async setAllowedIps(
    disk: { accountId: string; id: string },
    allowedIps: readonly string[],
  ): Promise<boolean> {
    const result = await setAllowedIps.run(this.#redis, this.#diskAndUsers(disk).slice(0, 1), [
      JSON.stringify(allowedIps),
    ]);
    return result === 1;
  }

  /** Hides the disk and frees its name. Delete its data after this, then call {@link remove}. */
  async beginDelete(record: DiskRecord): Promise<boolean> {
    const { accountId, id } = record;
    await this.deletions.note(record);
    const result = await beginDelete.run(
      this.#redis,
      [
        keys.diskNames(this.region, accountId),
        keys.disks(this.region, accountId),
        keys.disk(this.region, accountId, id),
      ],
      [id, orderedMember(record.createdAt, id)],
    );
    return result === 1;
  }

  async remove(disk: DiskRecord): Promise<void> {
    await this.#userIndex.remove(disk, disk.users);
    await this.#redis.del(
      ...this.#diskAndUsers(disk),
      keys.diskEpoch(this.region, disk.accountId, disk.id),
    );
    await this.deletions.forget(disk);
  }

  /** Adds uses to the disk's figures; no error when the disk is gone. */
  async recordUses(disk: { accountId: string; id: string }, uses: DiskUses): Promise<void> {
    await recordUses.run(this.#redis, this.#diskAndUsers(disk).slice(0, 1), [
      uses.at,
      uses.usedBytes ?? '',
      uses.requests,
      Math.round(uses.requestMs),
    ]);
  }

  /** The disks that may have a user with this identifier. Only their records say whether they do. */
  async ofUser(identifier: string): Promise<{ accountId: string; id: string }[]> {
    return this.#userIndex.find(identifier);
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

  #queueRead(pipeline: ChainableCommander, accountId: string, diskId: string): void {
    pipeline
      .hgetall(keys.disk(this.region, accountId, diskId))
      .hgetall(keys.diskUsers(this.region, accountId, diskId))
      .get(keys.diskLease(this.region, accountId, diskId));
  }
}

const READS_PER_DISK = 3;

function readEntries(
  accountId: string,
  replies: [error: Error | null, result: unknown][] | null,
): (DiskEntry | undefined)[] {
  const values = (replies ?? []).map(([error, result]) => {
    if (error !== null) throw error;
    return result;
  });
  const entries: (DiskEntry | undefined)[] = [];
  for (let i = 0; i < values.length; i += READS_PER_DISK) {
    const fields = values[i] as Record<string, string>;
    const users = values[i + 1] as Record<string, string>;
    const record = toRecord(accountId, fields, users);
    const handler = leaseHolder(values[i + 2] as string | null);
    entries.push(
      record && {
        record,
        usage: toUsage(fields),
        clients: toClients(fields),
        ...(handler === undefined ? {} : { handler }),
      },
    );
  }
  return entries;
}
