import { parseJson } from '../../../shared/json.ts';
import type { ShownNetworkPolicy } from '../../../shared/schemas/network-policy.ts';
import type { SandboxConfig } from '../../../shared/schemas/sandbox-record.ts';
import type { SnapshotStatus } from '../../../shared/schemas/snapshot-record.ts';
import { type NameAddresses, type SandboxBase, toNameAddresses } from './sandbox-journal.ts';
import { all, type Database, insertRow, type Row, run, saveRow, type Value } from './sqlite.ts';

/** A snapshot as its host's journal has it. */
export interface SnapshotRow {
  /** Also names its directory. */
  readonly id: string;
  readonly accountId: string;
  readonly name: string;
  /** The sandbox that it was made of. */
  readonly sandboxId: string;
  readonly config: SandboxConfig;
  readonly environment: Readonly<Record<string, string>>;
  /** Undefined: the default image of its host. */
  readonly image: SandboxBase | undefined;
  readonly network: ShownNetworkPolicy;
  /** The same sealed for this snapshot, with its secrets; undefined when it has none. */
  readonly networkSealed: string | undefined;
  /** Addresses of the policy's names that its memory may know. */
  readonly nameAddresses?: NameAddresses | undefined;
  readonly rootDiskId: string;
  /** Owner of its empty top layer; no process runs under this uid. */
  readonly uid: number;
  readonly state: SnapshotStatus | 'deleting';
  readonly hasMemory: boolean;
  readonly sizeBytes: number;
  readonly failureReason: string | undefined;
  readonly revision: number;
  readonly createdAt: string;
}

const table = {
  name: 'snapshots',
  columns: [
    'id',
    'account_id',
    'name',
    'sandbox_id',
    'config',
    'environment',
    'image',
    'network',
    'network_sealed',
    'name_addresses',
    'root_disk_id',
    'uid',
    'state',
    'has_memory',
    'size_bytes',
    'failure_reason',
    'revision',
    'created_at',
  ],
};

const valuesOf = (row: SnapshotRow): Value[] => [
  row.id,
  row.accountId,
  row.name,
  row.sandboxId,
  JSON.stringify(row.config),
  JSON.stringify(row.environment),
  row.image === undefined ? null : JSON.stringify(row.image),
  JSON.stringify(row.network),
  row.networkSealed ?? null,
  row.nameAddresses === undefined ? null : JSON.stringify(row.nameAddresses),
  row.rootDiskId,
  row.uid,
  row.state,
  row.hasMemory ? 1 : 0,
  row.sizeBytes,
  row.failureReason ?? null,
  row.revision,
  row.createdAt,
];

const text = (value: string | number | null | undefined): string | undefined =>
  typeof value === 'string' ? value : undefined;

function imageOf(row: Row): SandboxBase | undefined {
  const image = text(row['image']);
  return image === undefined ? undefined : (parseJson(image) as SandboxBase);
}

const toSnapshot = (row: Row): SnapshotRow => ({
  id: String(row['id']),
  accountId: String(row['account_id']),
  name: String(row['name']),
  sandboxId: String(row['sandbox_id']),
  config: parseJson(String(row['config'])) as SandboxConfig,
  environment: parseJson(String(row['environment'])) as Record<string, string>,
  image: imageOf(row),
  network: parseJson(String(row['network'])) as ShownNetworkPolicy,
  networkSealed: text(row['network_sealed']),
  nameAddresses: toNameAddresses(row),
  rootDiskId: String(row['root_disk_id']),
  uid: Number(row['uid']),
  state: String(row['state']) as SnapshotRow['state'],
  hasMemory: row['has_memory'] === 1,
  sizeBytes: Number(row['size_bytes']),
  failureReason: text(row['failure_reason']),
  revision: Number(row['revision']),
  createdAt: String(row['created_at']),
});

/** The table of snapshots in the journal. Every write is durable when its promise resolves. */
export class SnapshotJournal {
  readonly #database: Database;

  constructor(database: Database) {
    this.#database = database;
  }

  async insert(row: SnapshotRow): Promise<void> {
    await insertRow(this.#database, table, valuesOf(row));
  }

  /** Writes the row as it is now. */
  async save(row: SnapshotRow): Promise<void> {
    await saveRow(this.#database, table, valuesOf(row));
  }

  async remove(id: string): Promise<void> {
    await run(this.#database, 'DELETE FROM snapshots WHERE id = ?', [id]);
  }

  /** All snapshots of this host, oldest first. */
  async list(): Promise<SnapshotRow[]> {
    const rows = await all(this.#database, 'SELECT * FROM snapshots ORDER BY created_at, id');
    return rows.map(toSnapshot);
  }
}
