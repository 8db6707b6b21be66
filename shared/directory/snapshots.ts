import type { RedisClient } from './redis-client.ts';
import { parseJson } from '../json.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { SnapshotRecord } from '../schemas/snapshot-record.ts';
import { compile } from '../validate.ts';
import { keys } from './keys.ts';
import { type ClaimResult, type Named, NamedRecords } from './named-records.ts';
import { type Page, pageOf, type PageRequest } from './page.ts';

const check = compile(SnapshotRecord);

/** @throws Error when the record is not one that Berth wrote */
function parse(text: string): SnapshotRecord {
  try {
    return check(parseJson(text), 'snapshot record');
  } catch (cause) {
    // The check throws `bad_request`, but this is not the caller's mistake.
    throw new Error('the directory holds a snapshot record that cannot be read', { cause });
  }
}

/**
 * Copies of all snapshots' records for reading, and the names that are taken. Hosts publish the
 * snapshots that they hold, all of them again after Redis lost its data.
 */
export class Snapshots {
  readonly #records: NamedRecords;

  constructor(redis: RedisClient, region: string) {
    const keysOf = (accountId: string) => ({
      records: keys.snapshots(region, accountId),
      names: keys.snapshotNames(region, accountId),
      claims: keys.snapshotClaims(region, accountId),
      undone: (id: string) => keys.undone(region, accountId, id),
    });
    this.#records = new NamedRecords(redis, keysOf, DIRECTORY_LIMITS.snapshotsPerAccountMax);
  }

  /**
   * Claims the name of a snapshot that is about to be made, and counts it against the account's
   * limit. The claim lapses after `ttlMs` unless the host publishes the snapshot before.
   */
  async claim(snapshot: Named, ttlMs: number): Promise<ClaimResult> {
    return this.#records.claim(snapshot, ttlMs);
  }

  /** Releases a claim. A snapshot that was published by now is not touched. */
  async releaseClaim(snapshot: Named): Promise<void> {
    await this.#records.releaseClaim(snapshot);
  }

  /** Notes that a host is to remove a snapshot whose creation failed. It may not have one. */
  async noteUndone(accountId: string, id: string, hostId: string): Promise<void> {
    await this.#records.noteUndone(accountId, id, hostId);
  }

  /** Whether the name is held only until a host has removed a snapshot whose creation failed. */
  async isBeingUndone(accountId: string, name: string): Promise<boolean> {
    return this.#records.isBeingUndone(accountId, name, (record) => parse(record).hostId);
  }

  /** For the host. The name of a failed snapshot is free for another. */
  async publish(record: SnapshotRecord): Promise<void> {
    await this.#records.publish(record, record, { isNamed: record.status !== 'failed' });
  }

  /** For the host: removes the record and frees the name. */
  async remove(snapshot: Named): Promise<void> {
    await this.#records.remove(snapshot);
  }

  async get(accountId: string, id: string): Promise<SnapshotRecord | undefined> {
    const text = await this.#records.get(accountId, id);
    return text === undefined ? undefined : parse(text);
  }

  async findByName(accountId: string, name: string): Promise<SnapshotRecord | undefined> {
    const id = await this.#records.idOf(accountId, name);
    return id === undefined ? undefined : this.get(accountId, id);
  }

  /** A page of the account's snapshots, oldest first. */
  async list(accountId: string, request: PageRequest): Promise<Page<SnapshotRecord>> {
    const records: SnapshotRecord[] = [];
    for await (const texts of this.#records.list(accountId)) records.push(...texts.map(parse));
    return pageOf(records, request);
  }
}
