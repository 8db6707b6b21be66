import type { RedisClient } from './redis-client.ts';
import { DIRECTORY_LIMITS } from './limits.ts';
import { SandboxRecord } from '../schemas/sandbox-record.ts';
import { compile } from '../validate.ts';
import { keys } from './keys.ts';
import { type ClaimResult, type Named, NamedRecords, type Share } from './named-records.ts';
import { announceRoute, removeRoute } from './sandbox-routes.ts';
import { parseJson } from '../json.ts';

/** A sandbox and the name it claims or has. */
export interface NamedSandbox {
  readonly accountId: string;
  readonly sandboxId: string;
  readonly name: string;
}

const check = compile(SandboxRecord);

/** @throws Error when the record is not one that Berth wrote */
function parse(text: string): SandboxRecord {
  try {
    return check(parseJson(text), 'sandbox record');
  } catch (cause) {
    // The check throws `bad_request`, but this is not the caller's mistake.
    throw new Error('the directory holds a sandbox record that cannot be read', { cause });
  }
}

const toNamed = ({ accountId, sandboxId: id, name }: NamedSandbox): Named => ({
  accountId,
  id,
  name,
});

const byAge = (a: SandboxRecord, b: SandboxRecord): number =>
  Date.parse(a.createdAt) - Date.parse(b.createdAt) || (a.id < b.id ? -1 : 1);

/**
 * Copies of all sandboxes' records for reading, published by their owners after each change, and
 * the names that are taken. After Redis lost its data the owners publish everything again.
 */
export class Sandboxes {
  readonly #records: NamedRecords;
  readonly #redis: RedisClient;
  readonly #region: string;

  constructor(redis: RedisClient, region: string) {
    const keysOf = (accountId: string) => ({
      records: keys.sandboxes(region, accountId),
      names: keys.sandboxNames(region, accountId),
      claims: keys.sandboxClaims(region, accountId),
      undone: (id: string) => keys.undone(region, accountId, id),
      limited: {
        limits: keys.accountLimits(accountId),
        shares: keys.sandboxShares(region, accountId),
      },
    });
    this.#records = new NamedRecords(redis, keysOf, DIRECTORY_LIMITS.sandboxesPerAccountMax);
    this.#redis = redis;
    this.#region = region;
  }

  /**
   * Claims the name of a sandbox that is about to be created, and counts it against the account's
   * limits. The claim lapses after `ttlMs` unless the owner publishes the sandbox before; until it
   * is published, callers do not see it.
   */
  async claim(sandbox: NamedSandbox, ttlMs: number, share?: Share): Promise<ClaimResult> {
    return this.#records.claim(toNamed(sandbox), ttlMs, share);
  }

  /** Releases a claim. A sandbox that was published by now is not touched. */
  async releaseClaim(sandbox: NamedSandbox): Promise<void> {
    await this.#records.releaseClaim(toNamed(sandbox));
  }

  /** Notes that a host is to remove a sandbox whose creation failed. It may not have one. */
  async noteUndone(accountId: string, sandboxId: string, hostId: string): Promise<void> {
    await this.#records.noteUndone(accountId, sandboxId, hostId);
  }

  /** Whether the name is held only until a host has removed a sandbox whose creation failed. */
  async isBeingUndone(accountId: string, name: string): Promise<boolean> {
    return this.#records.isBeingUndone(accountId, name, (record) => parse(record).hostId);
  }

  /**
   * For the owner: publishes the sandbox's record and where its ports are reached. A revision older
   * than the present one is ignored.
   * @returns false when another sandbox has the name
   */
  async publish(record: SandboxRecord): Promise<boolean> {
    const { accountId, id, config } = record;
    // In this order through one connection: whoever sees the sandbox finds its route.
    const [, isNamed] = await Promise.all([
      announceRoute(this.#redis, this.#region, record),
      this.#records.publish({ accountId, id, name: config.name }, record),
    ]);
    return isNamed;
  }

  /**
   * For the owner: removes the record, ports and port tokens and frees the name. It must not
   * publish the sandbox again.
   * @param revision of the owner's record: what a later owner has published stays
   */
  async remove(sandbox: NamedSandbox, revision?: number): Promise<void> {
    if (await this.#records.remove(toNamed(sandbox), revision))
      await removeRoute(this.#redis, this.#region, sandbox.sandboxId);
  }

  async get(accountId: string, sandboxId: string): Promise<SandboxRecord | undefined> {
    const text = await this.#records.get(accountId, sandboxId);
    return text === undefined ? undefined : parse(text);
  }

  /** The account's sandbox of this name, by the index of names. */
  async find(accountId: string, name: string): Promise<SandboxRecord | undefined> {
    const id = await this.#records.idOf(accountId, name);
    return id === undefined ? undefined : this.get(accountId, id);
  }

  /** All sandboxes of the account, oldest first. */
  async list(accountId: string): Promise<SandboxRecord[]> {
    const records: SandboxRecord[] = [];
    for await (const texts of this.#records.list(accountId)) records.push(...texts.map(parse));
    return records.sort(byAge);
  }
}
