/* `scripts/admin secrets`: which keys of ENCRYPTION_KEY have sealed what, and sealing it anew. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { writeDurably } from '../agent/system/write-durably.ts';
import { webhookSealContext } from '../control/region/webhooks/webhook-deliveries.ts';
import type { Directory } from '../shared/directory/directory.ts';
import type { DiskRecord } from '../shared/directory/disk-record.ts';
import { toError } from '../shared/errors.ts';
import { parseManifest } from '../shared/schemas/disk-manifest.ts';
import { bucketSealContext } from '../shared/schemas/disk-bucket.ts';
import { reseal, type Ring, sha256, tryUnseal } from '../shared/secrets.ts';

const KEY_ID_LENGTH = 12;
const PAGE = 100;
const MANIFEST = 'manifest.json';
/** How often what changes meanwhile is tried again. */
const ATTEMPTS = 10;

/** Names a key without telling anything of it. */
const keyIdOf = (key: Buffer): string =>
  sha256(`berth key ${key.toString('base64')}`).slice(0, KEY_ID_LENGTH);

type Kind = 'tokens of disks' | 'credentials of buckets' | 'secrets of webhooks' | 'manifests';

/** Something that is sealed, and for what. */
interface Sealed {
  readonly kind: Kind;
  readonly text: string;
  readonly context: string;
}

/** The sealed part of a disk's record; its manifest repeats it. */
const sealedOfDisk = ({ id, users, mounts = [] }: Pick<DiskRecord, 'id' | 'users' | 'mounts'>) => [
  ...users.flatMap(({ sealedToken: text }): Sealed[] =>
    text === undefined ? [] : [{ kind: 'tokens of disks', text, context: id }],
  ),
  ...mounts.map(({ id: mountId, sealedCredentials: text }): Sealed => ({
    ...{ kind: 'credentials of buckets', text, context: bucketSealContext(id, mountId) },
  })),
];

async function* disksOf({ disks }: Directory, accountId: string): AsyncGenerator<DiskRecord> {
  let cursor: string | undefined;
  do {
    const page = await disks.list(accountId, { limit: PAGE, cursor });
    for (const { record } of page.items) yield record;
    cursor = page.nextCursor;
  } while (cursor !== undefined);
}

const readManifest = async (storageDir: string, diskId: string) =>
  parseManifest(await readFile(join(storageDir, 'disks', diskId, MANIFEST), 'utf8')).disk;

interface Failure {
  readonly what: string;
  readonly reason: string;
}

/**
 * Counts what each key has sealed in the directory and in the manifests of the region.
 * @returns by kind and id of key; `unknown`: by none of the ring
 */
export async function sealedByKey(
  directory: Directory,
  keys: Ring<Buffer>,
  storageDir: string,
): Promise<object> {
  const ids = keys.map(keyIdOf);
  const counts: Partial<Record<Kind, Record<string, number>>> = {};
  const count = ({ kind, text, context }: Sealed): void => {
    const index = tryUnseal(keys, text, context)?.keyIndex;
    const id = (index === undefined ? undefined : ids[index]) ?? 'unknown';
    const ofKind = (counts[kind] ??= {});
    ofKind[id] = (ofKind[id] ?? 0) + 1;
  };
  const unreadable: Failure[] = [];
  for (const { id: accountId } of await directory.accounts.list()) {
    for (const { id, sealedSecret: text } of await directory.webhooks.list(accountId)) {
      count({ kind: 'secrets of webhooks', text, context: webhookSealContext(accountId, id) });
    }
    for await (const record of disksOf(directory, accountId)) {
      for (const each of sealedOfDisk(record)) count(each);
      try {
        const manifest = await readManifest(storageDir, record.id);
        for (const each of sealedOfDisk(manifest)) count({ ...each, kind: 'manifests' });
      } catch (error) {
        unreadable.push({ what: `manifest of ${record.id}`, reason: toError(error).message });
      }
    }
  }
  return { sealsNow: ids[0], opens: ids, sealed: counts, unreadable };
}

/** Seals anew, with the first key, what a former one has sealed in a region. May be repeated. */
class Resealing {
  readonly #directory: Directory;
  readonly #keys: Ring<Buffer>;
  readonly #storageDir: string;
  readonly #resealed: Record<Kind, number> = {
    'tokens of disks': 0,
    'credentials of buckets': 0,
    'secrets of webhooks': 0,
    manifests: 0,
  };

  constructor(directory: Directory, keys: Ring<Buffer>, storageDir: string) {
    this.#directory = directory;
    this.#keys = keys;
    this.#storageDir = storageDir;
  }

  /** How many of each kind were sealed anew. */
  get resealed(): Readonly<Record<Kind, number>> {
    return this.#resealed;
  }

  async webhooks(accountId: string): Promise<void> {
    const { webhooks } = this.#directory;
    for (const record of await webhooks.list(accountId)) {
      const context = webhookSealContext(accountId, record.id);
      const sealedSecret = reseal(this.#keys, record.sealedSecret, context);
      if (sealedSecret === undefined) continue;
      // Otherwise it was deleted just now: nothing else changes it.
      if (await webhooks.replace(accountId, record, { ...record, sealedSecret })) {
        this.#resealed['secrets of webhooks'] += 1;
      }
    }
  }

  /**
   * A disk's record, and then its manifest.
   * @throws Error when a text opens with none of the keys
   */
  async disk({ accountId, id }: Pick<DiskRecord, 'accountId' | 'id'>): Promise<void> {
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      const record = (await this.#directory.disks.get(accountId, id))?.record;
      if (record === undefined) return; // The disk was deleted meanwhile.
      if (!(await this.#record(record))) continue;
      if (await this.#manifest(accountId, id)) return;
    }
    throw new Error('it changes all the time: run this again');
  }

  /** @returns false when the record has changed meanwhile */
  async #record(record: DiskRecord): Promise<boolean> {
    const { disks } = this.#directory;
    for (const user of record.users) {
      if (user.sealedToken === undefined) continue;
      const sealedToken = reseal(this.#keys, user.sealedToken, record.id);
      if (sealedToken === undefined) continue;
      if (!(await disks.replaceUser(record, user, { ...user, sealedToken }))) return false;
      this.#resealed['tokens of disks'] += 1;
    }
    const { mounts = [] } = record;
    const next = mounts.map((mount) => {
      const context = bucketSealContext(record.id, mount.id);
      const sealedCredentials = reseal(this.#keys, mount.sealedCredentials, context);
      return sealedCredentials === undefined ? mount : { ...mount, sealedCredentials };
    });
    const changed = next.filter((mount, index) => mount !== mounts[index]).length;
    if (changed === 0) return true;
    if (!(await disks.replaceMounts(record, mounts, next))) return false;
    this.#resealed['credentials of buckets'] += changed;
    return true;
  }

  /**
   * Writes a manifest that a former key still seals, as agents do: from the present record. An
   * agent may write it at the same time, so it is looked at again, until it has the record's
   * revision.
   * @returns false when the record has changed meanwhile
   */
  async #manifest(accountId: string, id: string): Promise<boolean> {
    const isDone = (each: Sealed): boolean =>
      tryUnseal(this.#keys, each.text, each.context)?.keyIndex === 0;
    const manifest = await readManifest(this.#storageDir, id);
    if (sealedOfDisk(manifest).every(isDone)) return true;
    const record = (await this.#directory.disks.get(accountId, id))?.record;
    if (record === undefined) return true;
    if (!sealedOfDisk(record).every(isDone)) return false;
    const text = JSON.stringify({ version: 1, disk: record });
    await writeDurably(join(this.#storageDir, 'disks', id), MANIFEST, text);
    const after = (await this.#directory.disks.get(accountId, id))?.record;
    if (after !== undefined && after.revision !== record.revision) return false;
    this.#resealed.manifests += 1;
    return true;
  }
}

/**
 * Seals anew, with the first key of the ring, what former ones have sealed in the directory and in
 * the manifests of the region. What a host has sealed in its journal, its agent seals anew at its
 * start.
 * @returns `failed`: what none of the keys opens, or could not be written
 */
export async function resealAll(
  directory: Directory,
  keys: Ring<Buffer>,
  storageDir: string,
): Promise<{ readonly failed: readonly Failure[] }> {
  const resealing = new Resealing(directory, keys, storageDir);
  const failed: Failure[] = [];
  const attempt = async (what: string, work: () => Promise<void>): Promise<void> => {
    await work().catch((error: unknown) => failed.push({ what, reason: toError(error).message }));
  };
  for (const { id: accountId } of await directory.accounts.list()) {
    await attempt(`webhooks of ${accountId}`, () => resealing.webhooks(accountId));
    for await (const disk of disksOf(directory, accountId)) {
      await attempt(`disk ${disk.id}`, () => resealing.disk(disk));
    }
  }
  return { ...{ sealsNow: keyIdOf(keys[0]), resealed: resealing.resealed }, failed };
}
